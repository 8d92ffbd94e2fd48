"""Read results and scenarios of other programs, and write results as theirs."""
