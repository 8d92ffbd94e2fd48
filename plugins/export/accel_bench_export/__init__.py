"""Export of a stack and its work as a configuration of another training program."""
