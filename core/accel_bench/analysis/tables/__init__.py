"""Tables of experiments: their keys, and figures of runs as cells."""
