"""The job purpose `profile-data`: the lengths of a data set's samples, in a worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel_bench.errors import ScenarioError

if TYPE_CHECKING:
    from accel_bench.worker.measurement import Rank

COUNTED = ("limited", "empty", "samples_without_answer")
"""Keys of a data plugin's evidence that tell which rows of the data are left out."""


def read_data(rank: Rank) -> dict[str, Any]:
    """Return the number of tokens of each sample that a training takes, as `lengths`, and the
    evidence on left-out rows.

    Raises ScenarioError if the data plugin does not know its sample lengths.
    """
    data = rank.ask("load_data")
    lengths = getattr(data, "lengths", None)
    if lengths is None:
        lengths = rank.ask("sample_lengths")
    if lengths is None:
        use = rank.run.scenario.data.use
        raise ScenarioError(f"{use!r} does not say how long its samples are")
    evidence: dict[str, Any] = {}
    for _, report in rank.run.evidence_callbacks:
        evidence |= report()
    left_out = {key: evidence[key] for key in COUNTED if key in evidence}
    return {"lengths": [int(length) for length in lengths], **left_out}
