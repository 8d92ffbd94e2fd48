"""Data plugins of images, images with texts, and speech, generated on this machine."""
