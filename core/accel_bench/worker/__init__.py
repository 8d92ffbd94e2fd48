"""Code of the measured process, one for each rank; elsewhere only the test kit imports it."""
