"""Noise floor of this machine: one stack compared with itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import count, interval_text, percent, ratio
from accel_bench.documents.base import Frozen
from accel_bench.documents.presets import preset_path
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.runner.session import Reporter, Session
from accel_bench.scenario.find import read_draft
from accel_bench.store.database import open_store

SCENARIO = "noise-floor"
"""Name of the shipped scenario that is measured."""

AGAIN = "again"
"""Name of the stack that is identical to the baseline."""

TOO_NOISY = 0.5
"""Minimum detectable effect above which the machine is too noisy to compare anything."""


class NoiseFloor(Frozen):
    """Speed difference measured between identical stacks; numbers are null if measuring failed."""

    rounds: int = 0
    """Number of rounds that both stacks completed."""

    ratio: Interval | None = None
    """Speed ratio of the identical stacks, with the interval of the verdict."""

    minimum_detectable_effect: float | None = None
    """Smallest relative difference that this number of rounds can detect; 0.03 is 3 %."""

    spread: float | None = None
    """Spread across processes: coefficient of variation of their step times."""

    load: tuple[str, ...] = ()
    """Other activity on the host during the measurement."""

    problems: tuple[str, ...] = ()
    """Reasons why the measurement failed or is doubtful."""

    words: str
    """Conclusion from the measurement, in a sentence or two."""


def plan_noise_floor(machine: Machine) -> Plan:
    """Return the plan of the noise floor's measurement.

    Raises ScenarioError or PluginError if the measurement cannot run on this machine.
    """
    request = PlanRequest(overrides=((f"stacks.{AGAIN}", []),))
    return make_plan(read_draft(preset_path("scenarios", SCENARIO)), machine, request)


def measure_noise_floor(plan: Plan, machine: Machine, reporter: Reporter) -> NoiseFloor:
    """Run both stacks in a temporary results folder, and return the noise floor."""
    with (
        tempfile.TemporaryDirectory(prefix="accel-bench-") as folder,
        open_store(Path(folder), write=True) as store,
    ):
        session = Session(store, machine, reporter)
        session.run_plan(plan)
        summary = plan.summarize(session.results(plan))
    rows = {row.stack: row for row in summary.experiments}
    load = list(summary.noise)
    if machine.load_average is not None and machine.load_average >= machine.cores / 2:
        load.insert(
            0,
            f"load average {machine.load_average:.1f} on {count(machine.cores, 'core')} before it "
            "began: other work ran here, an idle machine shows more",
        )
    return noise_of(rows[plan.baseline], rows[AGAIN], tuple(load))


def noise_of(
    first: ExperimentSummary, again: ExperimentSummary, load: tuple[str, ...]
) -> NoiseFloor:
    """Return the noise floor from the summaries of two identical stacks.

    `first` is the baseline, `again` is compared with it, and `load` describes other activity on the
    host.
    """
    reasons = [f"{row.stack}: {reason}" for row in (first, again) for reason in row.reasons]
    spreads = [row.step_seconds.spread for row in (first, again) if row.step_seconds]
    known = [spread for spread in spreads if spread is not None]
    return NoiseFloor(
        rounds=again.rounds,
        ratio=again.ratio,
        minimum_detectable_effect=again.minimum_detectable_effect,
        spread=max(known, default=None),
        load=load,
        problems=tuple(dict.fromkeys(reasons)),
        words=_words(again),
    )


def _words(again: ExperimentSummary) -> str:
    """Return the conclusion from a stack's comparison with itself, in a sentence or two."""
    if again.ratio is None or again.minimum_detectable_effect is None:
        return f"not measured: {again.verdict_reason or again.status.value}"
    text = (
        f"The same work, measured twice in {again.rounds} rounds, came out "
        f"{ratio(again.ratio.median)} times as fast as itself "
        f"({interval_text(again.ratio, ratio)}). "
        f"{_visible(again.rounds, again.minimum_detectable_effect)}"
    )
    if again.wins or again.verdict == "worse":
        text += (
            f" Identical code was even called {again.verdict_word}: something else that runs here "
            "favours one of the two, so believe no verdict before it is gone."
        )
    return text


def _visible(rounds: int, effect: float) -> str:
    """Return a sentence on the smallest difference of speed that can be seen on this machine.

    `effect` is this difference as a fraction, after `rounds` rounds.
    """
    if effect > TOO_NOISY:
        return (
            "It is too noisy here just now to compare anything: with so many rounds a stack would "
            f"have to be {1 + effect:.2g} times as fast to be seen. Let other work end first."
        )
    return (
        f"So with {rounds} rounds a difference of {percent(effect)} or more between two stacks can "
        "be seen on this machine; more rounds (--rounds) show smaller ones."
    )
