"""Trackers: they log stored runs elsewhere, in the parent, between runs."""
