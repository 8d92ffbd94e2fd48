"""Export of a stack and a scenario's work as a configuration of another training program."""
