"""The program `accel-bench`: its commands, and the one place where errors become messages."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from accel_bench.cli import (
    audit,
    bundle,
    claim,
    compare,
    convergence,
    cost,
    count,
    doctor,
    estimate,
    fit,
    gate,
    hardware,
    history,
    import_results,
    models,
    new,
    op,
    pivot,
    plugins,
    prices,
    profile,
    recommend,
    report,
    reproduce,
    results,
    run,
    scaling,
    scenarios,
    site,
    stacks,
    summary,
    tune,
)
from accel_bench.cli.output import print_aside, with_wide
from accel_bench.cli.streams import prepare_streams
from accel_bench.documents.shown import printable
from accel_bench.errors import AccelBenchError
from accel_bench.launcher import INTERRUPTIONS

COMMANDS: dict[str, dict[str, Any]] = {
    "Measure": {
        "run": run.run,
        "gate": gate.gate,
        "scaling": scaling.scaling,
        "fit": fit.fit,
        "tune": tune.tune,
        "profile": profile.profile,
        "count": count.count,
        "op": op.app,
        "reproduce": reproduce.reproduce,
    },
    "Look at what is stored": {
        "report": report.report,
        "compare": compare.compare,
        "pivot": pivot.pivot,
        "summary": summary.summary,
        "history": history.history,
        "claim": claim.app,
        "convergence": convergence.convergence,
        "cost": cost.cost,
        "audit": audit.audit,
        "results": results.app,
    },
    "Decide": {
        "estimate": estimate.estimate,
        "recommend": recommend.recommend,
    },
    "Exchange": {
        "bundle": bundle.bundle,
        "site": site.site,
        "import": import_results.import_results,
    },
    "Look up and write": {
        "doctor": doctor.doctor,
        "plugins": plugins.app,
        "new": new.app,
        "scenarios": scenarios.app,
        "stacks": stacks.app,
        "models": models.app,
        "hardware": hardware.app,
        "prices": prices.app,
    },
}
"""All commands under the titles of `--help`."""


class _TitledCommands(TyperGroup):
    """Lists the commands under their titles."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in COMMANDS.items():
            with formatter.section(title):
                width = formatter.width - 14
                texts = ((name, self.commands[name].get_short_help_str(width)) for name in names)
                formatter.write_dl(list(texts))


def _add_wide(group: typer.Typer) -> None:
    """Give `--wide` to all commands of a group that print tables, and to the group itself."""
    for one in (*group.registered_commands, group.registered_callback):
        if one is not None and one.callback is not None:
            one.callback = with_wide(one.callback)


app = typer.Typer(
    name="accel-bench",
    help="Find out which acceleration trains your model fastest with the same loss, or answers "
    "its requests fastest with the same output.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=_TitledCommands,
)
for _name, _command in (pair for titled in COMMANDS.values() for pair in titled.items()):
    if isinstance(_command, typer.Typer):
        _add_wide(_command)
        app.add_typer(_command, name=_name)
    else:
        app.command(_name)(with_wide(_command))


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
    prepare_streams()
    _raised.clear()
    for number in INTERRUPTIONS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` has it
            signal.signal(number, _on_signal)
    try:
        app(prog_name="accel-bench")
    except AccelBenchError as error:
        print_aside(f"error: {printable(str(error))}")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:  # while typer was ending already
        sys.exit(_exit_code(130))
    except SystemExit as stop:
        sys.exit(_exit_code(stop.code))  # typer exits with 130 for all signals
    except OSError as error:
        # Whoever read our output has gone, or cannot take more; what was measured is stored.
        if not isinstance(error, BrokenPipeError):
            print_aside(f"error: {printable(str(error))}")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(_exit_code(1))


QUICK_SECONDS = 2.0
"""Signals within this time of one that ends the program change nothing: people press twice."""

_raised: list[tuple[int, float]] = []
"""Signals that were raised as KeyboardInterrupt, and when."""


def _on_signal(number: int, frame: object) -> None:
    """Raise KeyboardInterrupt for each of them, so that they end the program as Ctrl-C does."""
    now = time.monotonic()
    if not _raised or now - _raised[-1][1] >= QUICK_SECONDS:
        _raised.append((number, now))
        raise KeyboardInterrupt


def _exit_code(otherwise: Any) -> Any:
    """Return 128 + the signal that ends the program; later ones change nothing any more."""
    if not _raised:
        return otherwise
    for number in INTERRUPTIONS:  # Python, as it ends, would give SIGINT back its default.
        signal.signal(number, signal.SIG_IGN)
    return 128 + _raised[0][0]
