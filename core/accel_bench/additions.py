"""What the command line and the plugins add to a scenario before it is planned."""

from __future__ import annotations

from collections.abc import Sequence

from accel_bench.errors import ScenarioError
from accel_bench.installed import find
from accel_bench.plugins import load_class
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import Scenario, ScenarioFile
from accel_bench.scenario.uses import Use

ADAPTER_WHEN_NEEDED = "lora"
"""The adapter that is added to the work when a plugin needs one and the scenario has none."""

METRIC_ON_GPU = "nvml"
"""The metric that is measured beside the default ones where there is a GPU."""


def add_stack(draft: Draft, wish: str) -> None:
    """Add the stack of `--plugin`; a file without stacks of its own is the baseline as it is."""
    names = wish.split("+")
    for name in names:
        find(name)
    stacks = draft.data.setdefault("stacks", {"baseline": {"use": []}})
    if not isinstance(stacks, dict):
        return
    if stacks.get(wish, {"use": names}) != {"use": names}:
        raise ScenarioError(
            f"{draft.where(('stacks', wish))}: the file has a stack {wish!r} of its own, so "
            f"--plugin {wish} cannot add one; --only {wish} runs it"
        )
    stacks[wish] = {"use": names}
    draft.places["stacks", wish] = f"--plugin {wish}"


def add_what_plugins_need(
    draft: Draft, file: ScenarioFile, chosen: Sequence[str]
) -> tuple[str, ...]:
    """Add an adapter or a dtype that a chosen stack's plugin needs to the work of every stack.

    A comparison changes one thing: so the baseline gets them too. What the file sweeps, or the
    stack sets itself, is not added.
    """
    notices: list[str] = []
    for stack in chosen:
        entry = file.stacks[stack]
        decided = {*file.sweep, *file.zip, *entry.set}
        for name in [use.use for use in entry.use]:
            kind = load_class(name)
            if kind.needs_adapter and not _is_given(draft, decided, "adapter"):
                draft.set("adapter.use", ADAPTER_WHEN_NEEDED, f"added for {name}")
                added = f"adapter: {ADAPTER_WHEN_NEEDED}"
                notices.append(f"{added} added to every stack: {name} needs one")
            usual = "float32" in (kind.dtypes or ("float32",))
            if not usual and not _is_given(draft, decided, "model.dtype"):
                dtype = sorted(kind.dtypes or ())[0]
                draft.set("model.dtype", dtype, f"added for {name}")
                notices.append(f"model.dtype: {dtype} set for every stack: {name} needs it")
    return tuple(notices)


def sweep_seeds(draft: Draft, count: int) -> None:
    """Have `--seeds` sweep weights and data together, from the seeds that the file sets."""
    if draft.get("zip") is not None:
        raise ScenarioError(f"{draft.where(('zip',))}: --seeds cannot be added to a zip")
    values = {}
    for key in ("train.seed", "data.seed"):
        slot, _, name = key.partition(".")
        settings = draft.data.get(slot)
        first = settings.pop(name, 0) if isinstance(settings, dict) else 0
        if not isinstance(first, int):
            raise ScenarioError(f"{draft.where((slot, name))}: {key} is no whole number")
        values[key] = list(range(first, first + count))
    for key, seeds in values.items():
        draft.set(f"zip.{key}", seeds, f"--seeds {count}")


def with_metrics_of_device(scenario: Scenario) -> Scenario:
    """Where nobody has chosen metrics, a GPU is watched from outside too."""
    if scenario.resources.device != "cuda" or "metrics" in scenario.model_fields_set:
        return scenario
    return scenario.model_copy(update={"metrics": (*scenario.metrics, Use(use=METRIC_ON_GPU))})


def _is_given(draft: Draft, decided: set[str], key: str) -> bool:
    """Whether the file, its sweep or the stack decides on a key, or on the plugin of a slot."""
    written = draft.get(key)
    if isinstance(written, dict):
        written = written.get("use")
    return written is not None or not decided.isdisjoint({key, f"{key}.use"})
