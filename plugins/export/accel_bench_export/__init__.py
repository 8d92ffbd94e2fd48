"""Conversion of stacks and scenarios to configurations of other training programs, and back."""
