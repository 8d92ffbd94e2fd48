"""Command `judge`, which compares candidates' training steps with a reference step."""
