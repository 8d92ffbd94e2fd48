"""Options that `run` and `gate` share: types that say how each is written and what it is for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

DEFAULT_RESULTS = Path("accel_bench_results")
"""The results folder where no other is named."""

Plugins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="Add a stack with this plugin; A+B for both in that order."),
]
Overrides: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a dotted key."),
]
Timeout: TypeAlias = Annotated[float | None, typer.Option(min=0.001, help="Seconds for one run.")]
Device: TypeAlias = Annotated[
    Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to run.")
]
Results: TypeAlias = Annotated[
    Path, typer.Option(envvar="ACCEL_BENCH_RESULTS", metavar="DIR", help="Where results are kept.")
]
Retries: TypeAlias = Annotated[int, typer.Option(min=0, help="Tries after a run that was lost.")]
DryRun: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan and start nothing.")
]
MaxRuns: TypeAlias = Annotated[int, typer.Option(min=1, help="Refuse a plan with more runs.")]
AllowEnv: TypeAlias = Annotated[
    bool, typer.Option("--allow-env", help="Let scenarios set any environment variable.")
]
TrustRemoteCode: TypeAlias = Annotated[
    bool, typer.Option("--trust-remote-code", help="Let models bring code of their own.")
]
Output: TypeAlias = Annotated[
    Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="How to print.")
]
Quiet: TypeAlias = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
