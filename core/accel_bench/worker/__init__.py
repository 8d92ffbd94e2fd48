"""The measured process, one for each rank; beside it only the test kit imports this package."""
