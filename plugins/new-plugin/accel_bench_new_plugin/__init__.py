"""Write a plugin to go on from."""
