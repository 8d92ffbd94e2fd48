"""May two stored experiments be compared? What differs between them, and what of it is declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accel_bench.documents.base import Frozen, JsonValue
from accel_bench.documents.canonical import canonical_json
from accel_bench.machine.state import used_by
from accel_bench.result import Result

Facts = dict[str, Any]
"""What matters, by dotted key."""

MACHINE = ("system", "processor")
"""Facts of the machine beside those that are part of an experiment's identity."""

ALWAYS_EFFECTIVE = ("backend", "device", "float32_matmul_precision", "threads", "world_size")
"""What really held and must agree whatever two stacks declare."""

MEASURED_EFFECTIVE = ("gradient_flow",)
"""What was read back and is a measurement: equal runs need not agree on it to the last digit."""

BATCH = tuple(
    f"work.train.{key}"
    for key in ("micro_batch_size", "gradient_accumulation", "global_batch_size")
)
"""Any two of the three give the third, so that a stack that declares one has changed another."""

WORLD = (
    *BATCH,
    "work.parallel",
    "environment.devices",
    "effective.world_size",
    "effective.backend",
    "effective.threads",
)
"""What follows from the number of processes."""

FOLLOWS: Mapping[str, tuple[str, ...]] = {
    "data": ("environment.fingerprints",),
    "environment": ("effective.environment", "effective.threads"),
    "model": ("environment.fingerprints",),
    "resources.device": (
        "environment.cuda",
        "environment.devices",
        "environment.driver",
        "effective.device",
    ),
    "resources.devices": WORLD,
    "resources.nodes": WORLD,
    "resources.threads": ("effective.threads",),
    "train.global_batch_size": BATCH,
    "train.gradient_accumulation": BATCH,
    "train.matmul_precision": ("effective.float32_matmul_precision",),
    "train.micro_batch_size": BATCH,
}
"""Facts that follow from a setting, and that a stack declares together with it."""


class Difference(Frozen):
    """A fact in which two experiments differ."""

    key: str
    """Dotted key."""

    a: JsonValue
    """Value of A; null where it has none. Values of several runs stand in a list."""

    b: JsonValue
    """Value of B."""


class Comparability(Frozen):
    """Everything that differs."""

    declared: tuple[Difference, ...] = ()
    """What the two stacks declare, or what follows from it."""

    differing: tuple[Difference, ...] = ()
    """Everything else: one such field is enough to make a ratio meaningless."""

    @property
    def comparable(self) -> bool:
        """Whether nothing differs but what is declared."""
        return not self.differing


def comparability(a: Sequence[Result], b: Sequence[Result]) -> Comparability:
    """Hold two experiments against each other, by the runs of each (at least one).

    Device, driver, versions, threads, limits of clocks and power, dtype, tokens, batch: all must be
    equal, except what the stacks declare by their uses and settings. What a plugin of one stack
    alone brings, such as its version, is declared by its use.
    """
    plain = not any(run.experiment.stack.uses or run.experiment.stack.settings for run in (*a, *b))
    left, right = _facts(a, plain), _facts(b, plain)
    settings = {key for run in (*a, *b) for key in run.experiment.stack.settings}
    declared: list[Difference] = list(_uses(a[0], b[0]))
    differing: list[Difference] = []
    for key in dict.fromkeys((*left, *right)):
        if _left_out(key, left, right) or _same(left.get(key), right.get(key)):
            continue
        found = Difference(key=key, a=left.get(key), b=right.get(key))
        (declared if _is_declared(key, settings) else differing).append(found)
    return Comparability(declared=tuple(declared), differing=tuple(differing))


def _uses(a: Result, b: Result) -> Iterator[Difference]:
    """The uses of both stacks, where they differ."""
    left, right = (run.experiment.stack.model_dump(mode="json")["uses"] for run in (a, b))
    if not _same(left, right):
        yield Difference(key="uses", a=left, b=right)


def _is_declared(key: str, settings: set[str]) -> bool:
    """Whether a setting that a stack declares is this fact, holds it, or brings it about."""
    covered = [f"work.{setting}" for setting in settings]
    for setting in settings:
        for cause, effects in FOLLOWS.items():
            if _within(setting, cause) or _within(cause, setting):
                covered += effects
    return any(_within(key, cover) or _within(cover, key) for cover in covered)


def _within(key: str, whole: str) -> bool:
    """Whether a dotted key is another one, or lies under it."""
    return key == whole or key.startswith(f"{whole}.")


def _left_out(key: str, left: Facts, right: Facts) -> bool:
    """What one side alone has and need not be the same: plugins of a stack, unknown states."""
    may_lack = ("environment.plugins.", "environment.fingerprints.", "state.")
    return key.startswith(may_lack) and not (key in left and key in right)


def _facts(runs: Sequence[Result], plain: bool) -> Facts:
    """Facts of an experiment: of several values over its runs, all of them in a list."""
    values: dict[str, dict[str, Any]] = {}
    for run in runs:
        for key, value in _facts_of(run, plain):
            values.setdefault(key, {})[canonical_json(value)] = value
    return {
        key: next(iter(found.values()))
        if len(found) == 1
        else [value for _, value in sorted(found.items())]
        for key, found in values.items()
    }


def _facts_of(run: Result, plain: bool) -> Iterator[tuple[str, Any]]:
    """Facts of one run. Of what really held, a plain stack must agree in everything."""
    for key, value in run.experiment.identity.items():
        if key == "environment" and isinstance(value, dict):
            yield from _environment(value)
        elif key != "uses":
            yield from _flat(key, value)
    if run.machine is not None:
        yield from ((f"machine.{key}", getattr(run.machine, key)) for key in MACHINE)
    effective = run.ranks[0].effective.model_dump(mode="json") if run.ranks else {}
    for key, value in effective.items():
        if key in ALWAYS_EFFECTIVE or (plain and key not in MEASURED_EFFECTIVE):
            yield from _flat(f"effective.{key}", value)
    yield from _policy(run)


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Versions, devices and so on; plugins by their names."""
    for key, value in environment.items():
        if key != "plugins":
            yield from _flat(f"environment.{key}", value)
    for plugin in environment.get("plugins", ()):
        yield (
            f"environment.plugins.{plugin['name']}",
            f"{plugin['distribution']} {plugin['version']}",
        )


def _policy(run: Result) -> Iterator[tuple[str, Any]]:
    """What governs clocks and power, as far as it was stored."""
    if run.state_before is None:
        return
    yield "state.governors", list(run.state_before.cpu.governors)
    uuids = [rank.device.uuid for rank in run.ranks if rank.device and rank.device.uuid]
    for number, gpu in enumerate(used_by(run.state_before, uuids)):
        for key in (
            "power_cap_watts",
            "application_sm_clock_megahertz",
            "application_memory_clock_megahertz",
        ):
            value = getattr(gpu, key)
            if value is not None:
                yield f"state.gpu{number}.{key}", value


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings; a list is a leaf."""
    if not isinstance(value, dict):
        yield key, value
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{name}", inner)


def _same(left: Any, right: Any) -> bool:
    return canonical_json(left) == canonical_json(right)
