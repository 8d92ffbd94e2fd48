"""`accel-bench reproduce`: run what a bundle holds again, and compare both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.options import MeasureOptions, takes


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(MeasureOptions):
    """Options of `reproduce`."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file of `accel-bench bundle new`.")
    ]
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds; else as many as the bundle has.")
    ] = None


@takes(ReproduceOptions)
def reproduce(options: ReproduceOptions) -> int:
    """Verify a bundle, say what differs here, run its scenario again, and compare both.

    A ratio is reproduced where it is the bundle's within 5 %, or on the same side of 1 with no sure
    difference. Absolute speeds are compared on the same device model alone, without a verdict.

    A bundle chooses no files, environments, variables, launcher and code of this machine, and no
    other machine to contact: what it asks for needs --set, --allow-env or --trust-remote-code.

    Exits with 0 reproduced, 1 a stack failed, 4 not reproduced, 5 cannot tell.
    """
    from accel_bench_share.reproduce_request import run_reproduction

    return run_reproduction(options)
