"""Verification: the effective configuration is read back, and compared with the scenario."""
