"""Store of results: one SQLite file and a folder for each run; nothing is overwritten."""
