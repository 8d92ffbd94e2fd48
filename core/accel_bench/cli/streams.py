"""Prepare the standard streams, so that one that is closed, full or narrow costs no result."""

from __future__ import annotations

import codecs
import io
import os
import sys
from typing import Any

ESCAPE = "accel_bench_escape"
"""Name of the error handler that writes what an encoding lacks as JSON would."""


class LossyFile(io.FileIO):
    """A file that drops what it cannot write: progress matters less than what it reports on."""

    def write(self, data: Any, /) -> int:
        """Write, or drop everything: on a full disk, a closed pipe, a terminal that is gone."""
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Open what the caller closed, let stderr drop what it cannot take, and escape characters."""
    # A file that is opened later would get the number of a closed stream, and what is printed.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf8")
    codecs.register_error(ESCAPE, _escape)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPE)
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:
        raw = LossyFile(sys.stderr.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=sys.stderr.encoding,
            errors=ESCAPE,
            line_buffering=True,
        )


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Replace characters by escapes that are valid in JSON too; the lines of tables by hyphens."""
    import json

    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join("-" if one == "─" else json.dumps(one)[1:-1] for one in lacking), error.end
