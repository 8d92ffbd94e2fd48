"""Running of a plan: ranks are started, supervised and ended, and every attempt gets one result."""
