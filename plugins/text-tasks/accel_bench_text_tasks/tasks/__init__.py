"""Tasks on text other than next-token prediction, with their losses."""
