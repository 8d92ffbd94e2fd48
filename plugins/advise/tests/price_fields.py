"""Fields of a row of a table of prices."""

from __future__ import annotations

FIELDS = {
    "provider": "aws",
    "instance": "p4d.24xlarge",
    "region": "us-east-1",
    "device": "a100-sxm-40gb",
    "devices": 8,
    "usd_per_hour": 20.0,
    "source": "my contract",
    "date": "2026-01-02",
}
