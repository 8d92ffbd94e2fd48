"""What tasks of pairs ask of their data."""

from __future__ import annotations

from accel_bench import Run
from accel_bench.errors import ScenarioError


def require_pairs(run: Run) -> None:
    """Raise ScenarioError for data that holds no pairs; a simulation has no data."""
    from accel_bench.modeling.tensors import is_simulated

    if not hasattr(run.dataset, "pair") and not is_simulated():
        raise ScenarioError(
            f"task {run.scenario.task.use!r} reads pairs, and data {run.scenario.data.use!r} holds "
            "none; use data such as docstrings, translations or synthetic-pairs"
        )
