"""Files that the program writes for people to go on from."""
