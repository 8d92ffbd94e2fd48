"""Trackers that log stored runs to other programs, from the parent, between runs."""
