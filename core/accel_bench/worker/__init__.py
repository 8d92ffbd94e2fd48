"""The measured process; outside of it only the test kit imports this package."""
