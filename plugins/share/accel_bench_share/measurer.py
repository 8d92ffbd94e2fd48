"""Tell apart who has measured on which machine, without saying who or where."""

from __future__ import annotations

import getpass
import hashlib
import secrets
import socket

from accel_bench.errors import StoreError
from accel_bench.machine.caches import cache_folder

FILE = "measurer"
"""File in the folder of caches: random digits of this user, which leave it in no other form."""

DIGITS = 16
"""Hex digits of a pseudonym."""


def pseudonym(salt: str) -> str:
    """Return digits that are the same for this user on this machine, and another salt's are others.

    Nobody can compute them from names alone. Empty where no folder of caches can be kept.
    """
    try:
        own = _own_digits()
        parts = (own, socket.gethostname(), getpass.getuser(), salt)
    except (StoreError, OSError, KeyError, ValueError):
        return ""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


def _own_digits() -> str:
    """Return this user's random digits, which are drawn at the first call."""
    path = cache_folder() / FILE
    try:
        with path.open("x", encoding="utf8") as handle:
            handle.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    return path.read_text(encoding="utf8")
