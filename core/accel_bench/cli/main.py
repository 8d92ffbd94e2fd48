"""The program `accel-bench`: its commands, and the one place where errors become messages."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated

import typer

from accel_bench.cli import (
    audit,
    compare,
    cost,
    doctor,
    gate,
    hardware,
    models,
    new,
    plugins,
    prices,
    results,
    run,
    scenarios,
    stacks,
)
from accel_bench.errors import AccelBenchError

app = typer.Typer(
    name="accel-bench",
    help="Find out which acceleration trains your language model fastest, with the same loss.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("gate")(gate.gate)
app.command("audit")(audit.audit)
app.command("cost")(cost.cost)
app.command("doctor")(doctor.doctor)
for group in (plugins, new, scenarios, stacks, models, hardware, prices, results):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def _print_version(requested: bool) -> None:
    if requested:
        from accel_bench._version import __version__

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
    """Run the program; an error of ours is a message and an exit code, not a traceback."""
    signal.signal(signal.SIGTERM, _on_sigterm)
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w", encoding="utf8")
    try:
        app(prog_name="accel-bench")
    except AccelBenchError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except SystemExit:
        if _signalled:  # typer knows of Ctrl-C only, and exits with 130 for both
            sys.exit(128 + signal.SIGTERM)
        raise
    except OSError as error:
        # Whoever read our output has gone, or cannot take more; what was measured is stored.
        if not isinstance(error, BrokenPipeError):
            typer.echo(f"error: {error}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


_signalled: list[int] = []


def _on_sigterm(number: int, frame: object) -> None:
    # Like Ctrl-C, with an exit code of its own.
    _signalled.append(number)
    raise KeyboardInterrupt
