"""Trackers, which log stored runs to other programs, in the parent process and between runs."""
