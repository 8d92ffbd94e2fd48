"""Checks of network addresses."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or `localhost`, without a name lookup."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_ip_address(text: str) -> bool:
    """Return whether a text is an IP address, with a port or without."""
    bare = text.rpartition("]")[0].removeprefix("[") if text.startswith("[") else text
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return False
    return True
