"""Execution of a plan: ranks are started, supervised and ended; every attempt gives a result."""
