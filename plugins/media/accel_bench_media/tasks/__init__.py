"""Tasks of images and speech, with their losses."""
