"""Data plugins and tasks of images and speech."""
