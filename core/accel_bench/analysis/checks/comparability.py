"""Comparability of two stored experiments: differences, and which of them the stacks declare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accel_bench.analysis.statistics.verdict import Comparison, RoundKey
from accel_bench.analysis.wording import join_names, plain_value
from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.machine.state import used_by
from accel_bench.result import Result
from accel_bench.scenario.draft import dotted
from accel_bench.scenario.models import Stack

Facts = dict[str, Any]
"""Settings and properties that must agree, by dotted key."""

MACHINE = ("system", "processor")
"""Properties of the machine that must agree, in addition to an experiment's id."""

ALWAYS_EFFECTIVE = (
    *("backend", "device", "float32_matmul_precision"),
    *("scheduling", "threads", "world_size"),
)
"""Effective settings that must agree, whatever two stacks declare."""

MEASURED_EFFECTIVE = (
    "compilation",
    "gradient_flow",
    "optimizer_progress",
    "synchronizations_per_step",
)
"""Effective settings that are measurements, which need not agree to the last digit."""

POLICY = (
    "power_cap_watts",
    "application_sm_clock_megahertz",
    "application_memory_clock_megahertz",
)
"""Limits of a GPU's clocks and power that must agree."""

BATCH = tuple(
    f"work.train.{key}"
    for key in ("micro_batch_size", "gradient_accumulation", "global_batch_size")
)
"""Keys of the batch size, of which any two determine the third."""

GROUPS = "work.resources.data_parallel"
"""Key of the number of data-parallel groups of ranks, as the parallel plugin reports it."""

BATCH_OF_A_GROUP = ("work.train.micro_batch_size", "work.train.gradient_accumulation")
"""Keys of the batch that grow if fewer data-parallel groups share a global batch."""

WORLD = (
    *BATCH,
    "work.parallel",
    "environment.devices",
    "effective.world_size",
    "effective.backend",
    "effective.scheduling.cpus",
    "effective.threads",
)
"""Keys that follow from the number of processes."""

NOT_COMPARABLE = "not comparable"
"""Beginning of the reason why two experiments are not compared."""

MAY_LACK = (
    "environment.plugins.",
    "environment.fingerprints.",
    "effective.matmul_dtypes.",  # as dropout, rows of earlier versions have not stored them
    "effective.dropout.",
    "effective.random_operations",
    "effective.scheduling",
    "state.",
)
"""Prefixes of keys that one experiment may lack."""

FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "data": ("environment.fingerprints",),
    "engine": ("environment.fingerprints",),
    "environment": ("effective.environment", "effective.scheduling", "effective.threads"),
    "inference.batch_size": BATCH,
    "inference.prompt_tokens": ("work.data.sequence_length",),
    "model": ("environment.fingerprints",),
    "resources.backend": ("effective.backend",),
    "resources.device": (
        "environment.cuda",
        "environment.devices",
        "environment.driver",
        "effective.device",
    ),
    "resources.device_type": ("environment.devices",),
    "resources.devices": WORLD,
    "resources.devices_by_node": WORLD,
    "resources.environment": (
        *("environment.distributions", "environment.plugins", "environment.python"),
        *("environment.versions", "effective.python", "effective.torch"),
    ),
    "resources.nodes": WORLD,
    "resources.threads": ("effective.threads",),
    "train.global_batch_size": BATCH,
    "train.gradient_accumulation": BATCH,
    "train.matmul_precision": ("effective.float32_matmul_precision",),
    "train.micro_batch_size": BATCH,
}
"""Keys that follow from a setting; a stack that declares the setting declares them too."""


class Difference(Frozen):
    """A key whose value differs between two experiments."""

    key: str
    """Dotted key of the setting or property."""

    a: JsonValue
    """Value in experiment A; null if it has none, a list if its runs have several."""

    b: JsonValue
    """Value in experiment B, like `a`."""


class Comparability(Frozen):
    """All differences between two experiments A and B."""

    declared: tuple[Difference, ...] = ()
    """Differences that the two stacks declare, or that follow from declared ones."""

    differing: tuple[Difference, ...] = ()
    """Undeclared differences: any one of them forbids a ratio."""

    @property
    def comparable(self) -> bool:
        """True if all differences are declared."""
        return not self.differing

    @property
    def refusal(self) -> str:
        """Reason why A and B cannot be compared, with the differing values; empty if they can."""
        if self.comparable:
            return ""
        values = [
            f"{diff.key} ({plain_value(diff.b)} in the place of {plain_value(diff.a)})"
            for diff in self.differing
        ]
        return f"{NOT_COMPARABLE}: {join_names(values)} differ without being declared"


def of_comparable(speed: Comparison, allowed: Comparability) -> Comparison:
    """Return `speed`, without its verdict if the two experiments are not comparable."""
    return speed if allowed.comparable else speed.without_verdict(allowed.refusal)


def comparability(a: Sequence[Result], b: Sequence[Result]) -> Comparability:
    """Compare two experiments' settings, environments and machines, from one run or more of each.

    All values must be equal, except for differences that the stacks declare by their plugins and
    settings. A stack that alone uses a plugin also declares the plugin's version.
    """
    plain = not any(run.experiment.stack.uses or run.experiment.stack.settings for run in (*a, *b))
    left, right = _facts(a, plain), _facts(b, plain)
    settings = {key for run in (*a, *b) for key in run.experiment.stack.settings}
    used = _used_by_one(a[0].experiment.stack, b[0].experiment.stack)
    if left.get(GROUPS) != right.get(GROUPS):
        used |= {GROUPS, *BATCH_OF_A_GROUP}
    declared: list[Difference] = []
    differing: list[Difference] = []
    for key in dict.fromkeys((*left, *right)):
        # Plugins of one stack alone, and states that one side does not know, need not agree.
        left_out = key.startswith(MAY_LACK) and not (key in left and key in right)
        if left_out or canonical_json(left.get(key)) == canonical_json(right.get(key)):
            continue
        difference = Difference(key=key, a=left.get(key), b=right.get(key))
        by_stack = _is_declared(key, settings) or any(_within(key, prefix) for prefix in used)
        (declared if by_stack else differing).append(difference)
    return Comparability(declared=tuple(declared), differing=tuple(differing))


def comparability_of_rounds(
    baseline: Mapping[RoundKey, Result], stack: Mapping[RoundKey, Result]
) -> Comparability:
    """Compare two experiments by their common rounds; without a common round nothing differs."""
    keys = sorted(set(baseline) & set(stack))
    if not keys:
        return Comparability()
    return comparability([baseline[key] for key in keys], [stack[key] for key in keys])


def _used_by_one(a: Stack, b: Stack) -> set[str]:
    """Return the key `environment.fingerprints.NAME` of each plugin that only one stack uses, or
    that both use with different options."""
    texts = [{(use.use, canonical_json(use.options)) for use in stack.uses} for stack in (a, b)]
    return {f"environment.fingerprints.{name}" for name, _ in texts[0] ^ texts[1]}


def _is_declared(key: str, settings: set[str]) -> bool:
    """Return whether a key is, contains or is within a declared setting, or follows from one."""
    if key == "uses":
        return True
    covered = [f"work.{setting}" for setting in settings]
    for setting in settings:
        for cause, effects in FOLLOWS.items():
            if _within(setting, cause) or _within(cause, setting):
                covered += effects
    return any(_within(key, cover) or _within(cover, key) for cover in covered)


def _within(key: str, whole: str) -> bool:
    return key == whole or key.startswith(f"{whole}.")


def _facts(runs: Sequence[Result], plain: bool) -> Facts:
    """Return settings and properties by dotted key; where `runs` disagree, the value is the list of
    their values. `plain` is as in `_facts_of`."""
    values: dict[str, dict[str, Any]] = {}
    for run in runs:
        for key, value in _facts_of(run, plain):
            values.setdefault(key, {})[canonical_json(value)] = value
    uses = runs[0].experiment.stack.model_dump(mode="json")["uses"]
    return {"uses": uses} | {
        key: next(iter(by_text.values()))
        if len(by_text) == 1
        else [value for _, value in sorted(by_text.items())]
        for key, by_text in values.items()
    }


def _facts_of(run: Result, plain: bool) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of a run's settings, machine and effective settings. The
    effective settings are those in ALWAYS_EFFECTIVE or, with `plain` (no stack changes anything),
    all except measurements."""
    for key, value in run.experiment.identity.items():
        if key == "environment" and isinstance(value, dict):
            yield from _environment(value)
        elif key != "uses":
            yield from dotted({key: value})
    if run.machine is not None:
        yield from ((f"machine.{key}", getattr(run.machine, key)) for key in MACHINE)
    effective = run.ranks[0].effective.model_dump(mode="json") if run.ranks else {}
    for key, value in effective.items():
        if value != "" and (key in ALWAYS_EFFECTIVE or (plain and key not in MEASURED_EFFECTIVE)):
            yield from dotted({f"effective.{key}": value})
    for rank in run.ranks[1:]:
        scheduling = rank.effective.model_dump(mode="json")["scheduling"]
        yield from dotted({"effective.scheduling": scheduling})
    yield from _policy(run)


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of an environment, with a key for each plugin's version."""
    for key, value in environment.items():
        if key != "plugins":
            yield from dotted({f"environment.{key}": value})
    for plugin in environment.get("plugins", ()):
        version = f"{plugin['distribution']} {plugin['version']}"
        yield f"environment.plugins.{plugin['name']}", version


def _policy(run: Result) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of CPU governors, and of GPUs' clock and power limits."""
    if run.state_before is None:
        return
    yield "state.governors", list(run.state_before.cpu.governors)
    uuids = [rank.device.uuid for rank in run.ranks if rank.device and rank.device.uuid]
    for number, gpu in enumerate(used_by(run.state_before, uuids)):
        for key in POLICY:
            value = getattr(gpu, key)
            if value is not None:
                yield f"state.gpu{number}.{key}", value
