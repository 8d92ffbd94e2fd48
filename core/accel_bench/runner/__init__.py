"""Running of a plan: ranks are started, supervised and ended, with one result for every outcome."""
