"""The document of `accel-bench reproduce`: a bundle's runs beside those of their repetition."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.facts import device_models
from accel_bench.analysis.reproduction import (
    ReproductionVerdict,
    StackReproduction,
    reproduce_stacks,
)
from accel_bench.analysis.schema import Document, Summary
from accel_bench.result import Result, Status
from accel_bench_share.facts import differing


class Reproduction(Document):
    """The document of `accel-bench reproduce`."""

    bundle: str
    """The file."""

    sha256: str
    """Checksum that its manifest states."""

    scenario: str
    """Name of the scenario."""

    verdict: ReproductionVerdict
    """Not reproduced where one stack is not, else cannot tell where one stack cannot."""

    same_device: bool
    """True if both ran on the same device model: only then are absolute speeds compared."""

    devices_there: tuple[str, ...]
    """Device models of the bundle."""

    devices_here: tuple[str, ...]
    """Device models of the runs here."""

    differing: tuple[Difference, ...] = ()
    """Versions and machines that differ: A is the bundle's, B the one here."""

    stacks: tuple[StackReproduction, ...]
    """A row for each experiment of the bundle."""

    @property
    def exit_code(self) -> int:
        """Return 0 reproduced, 1 a stack that failed here alone, 4 not reproduced, 5 open."""
        if self.verdict == "not reproduced":
            return 4
        failed = any(
            row.status_here is not None
            and row.status_here is not Status.SKIPPED
            and not row.status_here.completed
            for row in self.stacks
        )
        return 1 if failed else {"reproduced": 0, "cannot tell": 5}[self.verdict]


def judge_bundle(
    file: str, sha256: str, there: Sequence[Result], here: Summary, here_runs: Sequence[Result]
) -> Reproduction:
    """Compare a bundle's runs (at least one) with the summary and the runs of their repetition."""
    devices = device_models(there), device_models(here_runs)
    stacks = reproduce_stacks(there, here, here_runs)
    return Reproduction(
        bundle=file,
        sha256=sha256,
        scenario=here.scenario,
        verdict=_overall([row.verdict for row in stacks if row.verdict is not None]),
        same_device=devices[0] == devices[1],
        devices_there=devices[0],
        devices_here=devices[1],
        differing=differing(there, here_runs),
        stacks=stacks,
    )


def _overall(verdicts: Sequence[ReproductionVerdict]) -> ReproductionVerdict:
    if "not reproduced" in verdicts:
        return "not reproduced"
    return "reproduced" if verdicts and {*verdicts} == {"reproduced"} else "cannot tell"
