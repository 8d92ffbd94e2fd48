"""A PostgreSQL server of Debian's package for tests: in a folder of its own, on a socket alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACES = "/usr/lib/postgresql/*/bin"
UNPRIVILEGED = "postgres"
"""The user that Debian's package makes: the server refuses to run as root."""


def find_program(name: str) -> str:
    """The path of a program of the package, which Debian keeps out of PATH."""
    found = sorted(Path("/").glob(f"{PLACES[1:]}/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    assert path, f"{name} is not installed; apt-get install postgresql"
    return path


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server and yield the address of its database; it is stopped and removed."""
    as_root = os.geteuid() == 0
    user = {"user": UNPRIVILEGED, "group": UNPRIVILEGED, "extra_groups": ()} if as_root else {}
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        if as_root:
            shutil.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        data = f"{folder}/data"
        making = [find_program("initdb"), "-D", data, "-U", "bench", "-A", "trust", "-N"]
        subprocess.run(
            [*making, "-E", "UTF8", "--locale=C.UTF-8"],
            check=True,
            capture_output=True,
            cwd=folder,
            **user,
        )
        settings = {"listen_addresses": "", "unix_socket_directories": folder, "fsync": "off"}
        options = [part for pair in settings.items() for part in ("-c", "=".join(pair))]
        serving = [find_program("postgres"), "-D", data, *options]
        with open(f"{folder}/log", "wb") as log:
            server = subprocess.Popen(serving, stdout=log, stderr=log, cwd=folder, **user)
        try:
            ready = [find_program("pg_isready"), "-h", folder, "-U", "bench", "-q"]
            while subprocess.run(ready, check=False).returncode:
                assert server.poll() is None, Path(folder, "log").read_text()
            yield f"postgresql+psycopg://bench@/postgres?host={folder}"
        finally:
            server.terminate()
            server.wait(30)
