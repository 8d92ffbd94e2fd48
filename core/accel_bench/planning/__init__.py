"""Planning of a scenario: the experiments to run, and those to skip with reasons."""
