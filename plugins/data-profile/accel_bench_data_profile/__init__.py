"""Profiles of data sets: histograms of sample lengths, and random data with such lengths."""
