"""The commands `results`, which list, show, label and explain stored runs."""
