"""Store of results: a database and a folder of files for each run; nothing is overwritten."""
