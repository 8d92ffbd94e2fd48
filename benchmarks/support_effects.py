"""Tell a stack that changed how a model is trained from one that left all as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench.result import Result

OF_THE_RUN = frozenset(
    {
        "compilation",
        "environment",
        "environment_changes",
        "gradient_flow",
        "libraries",
        "optimizer_progress",
    }
)
"""What of the effective configuration a run leaves behind in the process, or computes anew."""

COUNTS = frozenset(
    {
        "adapted_layers",
        "checkpointed_blocks",
        "compiled_modules",
        "replaced",
        "replaced_modules",
        "switched_modules",
        "tensors_per_forward",
    }
)
"""Keys under which plugins count what they have changed."""


def changes_something(baseline: Result, stack: Result) -> bool:
    """Return whether a run was set up otherwise than the baseline's, by what was read back of both
    and by what plugins show."""
    if _plugins(baseline) != _plugins(stack):
        return True
    before, after = baseline.ranks[0], stack.ranks[0]
    shown = [after.evidence[name] for name in after.evidence if name not in before.evidence]
    if any(count for evidence in shown for count in _counts(evidence)):
        return True
    if _settings(before.effective) != _settings(after.effective):
        return True
    both = [name for name in after.evidence if name in before.evidence]
    return any(_exact(before.evidence[name]) != _exact(after.evidence[name]) for name in both)


def is_wrapped_whole(stack: Result) -> bool:
    """Return whether a model is wrapped to be divided over ranks, of which there is one."""
    effective = stack.ranks[0].effective
    return effective.strategy not in (None, "none") and (effective.sharing_ranks or 1) == 1


def _plugins(run: Result) -> list[str]:
    """Return the plugins that fill the slots of a run's work."""
    scenario = run.experiment.scenario
    return [getattr(scenario, slot).use for slot in scenario.SLOTS]


def _settings(effective: Any) -> dict[str, Any]:
    found: dict[str, Any] = effective.model_dump(exclude=OF_THE_RUN)
    return found


def _counts(evidence: Any) -> Iterator[int]:
    """Yield what a plugin has counted of its changes, at any depth."""
    if not isinstance(evidence, Mapping):
        return
    for key, value in evidence.items():
        if key in COUNTS:
            parts = value.values() if isinstance(value, Mapping) else [value]
            yield from (part for part in parts if isinstance(part, int))
        yield from _counts(value)


def _exact(evidence: Any) -> Any:
    """Return evidence without what is measured: numbers that are not whole."""
    if isinstance(evidence, Mapping):
        return {key: _exact(value) for key, value in evidence.items()}
    return None if isinstance(evidence, float) else evidence
