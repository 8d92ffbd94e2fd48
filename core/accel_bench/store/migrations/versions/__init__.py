"""One module for each version, which makes it of the one before."""
