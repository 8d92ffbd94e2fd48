"""Profiles of data sets: a histogram of sample lengths, and data with those lengths."""
