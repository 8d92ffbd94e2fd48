"""The command `results`: stored runs listed, shown, labelled and explained."""
