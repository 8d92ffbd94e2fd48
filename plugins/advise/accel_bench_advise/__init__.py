"""Memory, speed and money before anything runs, and which stack to take."""
