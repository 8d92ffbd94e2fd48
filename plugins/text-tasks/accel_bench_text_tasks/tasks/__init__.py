"""Tasks of text beside next-token prediction, with their losses."""
