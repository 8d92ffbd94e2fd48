"""Turn a scenario and a request into the experiments to run, and those to skip with a reason."""
