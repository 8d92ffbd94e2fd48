"""Share results: bundles that others verify and repeat, and a page of many of them."""
