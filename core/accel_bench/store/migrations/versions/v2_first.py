"""The earliest version that can be migrated; there is no step to it."""

revision = "2"
down_revision = None
