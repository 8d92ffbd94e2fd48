"""Which stored rows are evidence for a request: of its device, its length and one training."""

from __future__ import annotations

from collections import Counter

from accel_bench.analysis.wording import settings
from accel_bench.catalog.hardware import named_hardware
from accel_bench_advise.estimates.schema import LengthSummary
from accel_bench_advise.recommendation.answer import kept_settings
from accel_bench_advise.recommendation.candidates import Candidate
from accel_bench_advise.recommendation.ranking import last_start


def of_gpu(found: list[Candidate], gpu: str | None) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of a device; rows of others are never carried over to it."""
    if gpu is None:
        return found, []
    name = named_hardware(gpu).name
    own = [one for one in found if one.device.name == name]
    others = dict.fromkeys(one.device.label for one in found if one.device.name != name)
    return own, [f"rows of {label}: another device than {name}" for label in others]


def of_length(
    found: list[Candidate], lengths: LengthSummary | None
) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of the shortest stored length that holds 95 % of the samples."""
    if lengths is None:
        return found, []

    def length(one: Candidate) -> int:
        return one.experiment.scenario.data.sequence_length

    enough = [length(one) for one in found if length(one) >= lengths.percentile_95]
    taken = min(enough, default=None)
    others = sorted({length(one) for one in found} - {taken})
    notes = [
        f"rows of {other:,} tokens: the job needs {lengths.percentile_95:,}" for other in others
    ]
    return [one for one in found if length(one) == taken], notes


def of_newest_training(found: list[Candidate]) -> tuple[list[Candidate], list[str]]:
    """Return the candidates of the newest training of which several can be compared.

    A search for the largest batch, for one, leaves many trainings of one run each.
    """
    bases = [one for one in found if one.is_baseline and one.runs.usable] or found
    if not bases:
        return [], []
    usable = Counter(one.training for one in found if one.runs.usable)
    newest = max(bases, key=lambda one: (usable[one.training] > 1, last_start(one)))
    kept = [one for one in found if one.training == newest.training]
    others = {one.training: one for one in found if one.training != newest.training}
    notes = [
        f"rows of {one.experiment.scenario.name} ({settings(kept_settings(one))}): another "
        "training than the newest; --where chooses"
        for one in others.values()
    ]
    return kept, notes
