"""Python interface of the program: run scenarios, and read stored results."""
