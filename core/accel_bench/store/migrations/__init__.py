"""Steps between versions of the tables, which alembic runs; the version stands in `meta`."""
