"""Code of the measured process, one for each rank; only the test kit imports it elsewhere."""
