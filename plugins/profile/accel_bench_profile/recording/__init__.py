"""Recording of steps after the measured window, with separate steps for each part."""
