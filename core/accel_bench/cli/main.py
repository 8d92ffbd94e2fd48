"""Main function of the program `accel-bench`, with its streams, signals and error messages."""

from __future__ import annotations

import codecs
import io
import os
import signal
import sys
import time
from typing import Annotated, Any

import typer

from accel_bench.cli.groups import LazyCommands
from accel_bench.documents.escaping import printable
from accel_bench.errors import AccelBenchError
from accel_bench.launcher import INTERRUPTIONS

app = typer.Typer(
    name="accel-bench",
    help="Find out which acceleration trains your model fastest with the same loss, or answers "
    "its requests fastest with the same output.",
    epilog="accel-bench help commands lists more of them, NOUN --help all of a noun. "
    "Also: help exit-codes, formats, environment, numbers, or COMMAND.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=LazyCommands,
)


def _print_version(requested: bool) -> None:
    if requested:
        from accel_bench.documents.program import __version__

        typer.echo(f"accel-bench {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options of the program itself."""


def main() -> None:
    """Run the program; print the message of an AccelBenchError and exit with its exit code."""
    prepare_streams()
    _raised.clear()
    for number in INTERRUPTIONS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _on_signal)
    try:
        app(prog_name="accel-bench")
    except AccelBenchError as error:
        _print_error(error)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # while typer was ending already
        sys.exit(_exit_code(130))
    except SystemExit as stop:
        sys.exit(_exit_code(stop.code))  # typer exits with 130 for all signals
    except OSError as error:
        # Whoever read our output has gone, or cannot take more; what was measured is stored.
        if not isinstance(error, BrokenPipeError):
            _print_error(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_exit_code(1))


def _print_error(error: Exception) -> None:
    from accel_bench.cli.output import print_aside  # `--help` needs no tables

    print_aside(printable(str(error)), "error")


QUICK_SECONDS = 2.0
"""Seconds after a signal in which further signals are ignored: people press Ctrl-C twice."""

_raised: list[tuple[int, float]] = []
"""Number and `time.monotonic()` in seconds of each signal that was raised as KeyboardInterrupt."""


def _on_signal(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt for a signal, so that it ends the program as Ctrl-C does."""
    now = time.monotonic()
    if not _raised or now - _raised[-1][1] >= QUICK_SECONDS:
        _raised.append((number, now))
        raise KeyboardInterrupt


def _exit_code(otherwise: Any) -> Any:
    """Return 128 + the number of the signal that ended the program, or `otherwise` without a
    signal. Later signals are ignored."""
    if not _raised:
        return otherwise
    for number in INTERRUPTIONS:  # Python, as it ends, would give SIGINT back its default.
        signal.signal(number, signal.SIG_IGN)
    return 128 + _raised[0][0]


ESCAPE = "accel_bench_escape"
"""Name of the error handler that escapes characters outside of an encoding as in JSON."""


class LossyFile(io.FileIO):
    """File that drops unwritable output: progress matters less than the results."""

    def write(self, data: Any, /) -> int:
        """Write the data, or drop all of it on a full disk, a closed pipe or a lost terminal."""
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def prepare_streams() -> None:
    """Open standard streams that the caller closed, let stderr drop unwritable output, and escape
    characters that a stream's encoding lacks."""
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
    """Return JSON escapes for the characters that an encoding lacks, and the position after them.
    The character `─` in the lines of tables becomes a hyphen."""
    import json

    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join("-" if char == "─" else json.dumps(char)[1:-1] for char in lacking), error.end
