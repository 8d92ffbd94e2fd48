"""The measured process. Nothing outside this folder imports it, the test kit excepted."""
