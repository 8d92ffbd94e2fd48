"""Resolve a scenario file once: validate it, expand its ladder, and yield its sweep points."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.load import Location
from accel_bench.documents.validate import known_keys, validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.devices import AUTO as AUTO_DEVICE
from accel_bench.machine.devices import device_type
from accel_bench.scenario.batches import fewer_groups
from accel_bench.scenario.draft import Draft, check_depth
from accel_bench.scenario.environment import check_environment
from accel_bench.scenario.ladder import Ladder, content_of, expand_ladder
from accel_bench.scenario.models import Exclusion, Scenario, ScenarioFile, Stack, StackEntry, Work
from accel_bench.scenario.overrides import look_up, set_path
from accel_bench.scenario.sweep import (
    AUTO,
    STAND_INS,
    Choice,
    Choices,
    Point,
    applies,
    at,
    sweep_points,
)
from accel_bench.scenario.tags import make_tag

OF_THE_COMPARISON = frozenset(
    {
        "baseline",
        "description",
        "launcher",
        "measure",
        "measure.compare",
        "measure.rounds",
        "measure.seed",
        "measure.timeout_seconds",
        "name",
        "slow",
    }
)
"""Keys that do not change an experiment, so that none of them is swept."""

ENVIRONMENT = "resources.environment"
"""Key that chooses one of the environments."""


@dataclass(frozen=True)
class ResolvedFile:
    """A validated scenario file. Points of the sweep are taken from it."""

    scenario: ScenarioFile
    """The file with its baseline named and all stacks expanded, those of a ladder included."""

    written: Draft
    """The plain data of the same file, with the place of every value."""

    ladder: Ladder | None

    allow_environment: bool
    """True if stacks and sweeps may set any environment variable."""

    choices: Choices = field(default_factory=dict)
    """Sizes that were worked out where the file says `auto`."""

    @property
    def stacks(self) -> Mapping[str, StackEntry]:
        """Stacks by name, in written order."""
        return self.scenario.stacks

    def where(self, location: Location) -> str:
        """Return the place of a value, or of the nearest enclosing one that is known."""
        return self.written.where(location)

    def is_set(self, key: str) -> bool:
        """Return whether the file sets a dotted key to something."""
        return self.written.get(key) is not None

    def with_setting(self, key: str, value: Any, place: str) -> ResolvedFile:
        """Return the file with a dotted key of its work changed. Raises ScenarioError."""
        written = copy.deepcopy(self.written)
        written.set(key, value, place)
        file = _validated(written, self.ladder, self.allow_environment)
        return replace(file, choices=self.choices).with_stacks(self.stacks)

    def with_stacks(self, names: Iterable[str]) -> ResolvedFile:
        """Return the file with these of its stacks alone."""
        stacks = {name: self.stacks[name] for name in names}
        return replace(self, scenario=self.scenario.model_copy(update={"stacks": stacks}))

    def points(self, device: str) -> Iterator[Point]:
        """Yield the points in written order: sweep points outermost, within each the stacks.

        `device` is what `resources.device: auto` means here. Raises ScenarioError for a point that
        is not valid, for an environment variable that may not be set, and at the end for an
        exclusion with a key that no point has.
        """
        rules = self.scenario.exclude
        tagged: dict[str, dict[str, Any]] = {}
        idle = [(number, key) for number, rule in enumerate(rules) for key in rule.when]
        for sweep in sweep_points(self.scenario):
            for point in self.points_at(sweep, device):
                facts = point.facts() if rules else {}
                idle = [(number, key) for number, key in idle if not look_up(facts, key)[0]]
                reasons = tuple(rule.because for rule in rules if applies(rule, facts))
                tag = self._tag(point)
                if tag and tagged.setdefault(tag, sweep) != sweep:
                    raise ScenarioError(
                        f"{self.where(('tag',))}: the points{at(tagged[tag])} and{at(sweep)} have "
                        f"the same tag {tag!r}; name a key that differs in `tag.keys` or "
                        "`tag.format`, or write `tag: off`"
                    )
                yield point.model_copy(update={"excluded": reasons, "tag": tag})
        for number, key in idle:
            raise ScenarioError(
                f"{self.where(('exclude', number))}: no experiment of this scenario has the key "
                f"{key!r}; an option that keeps its default must be written out to be asked for"
            )

    def _tag(self, point: Point) -> str:
        """Return the point's tag. Raises ScenarioError for a key that it does not have."""
        rule, facts = self.scenario.tag, dict[str, Any]()
        if rule.keys or rule.format:
            names = {"preset": self.written.preset, "world_size": point.scenario.world_size}
            facts = {**point.facts(), **names}
        try:
            return make_tag(rule, point.sweep, facts)
        except ScenarioError as error:
            raise ScenarioError(f"{self.where(('tag',))}: {error}") from error

    def with_data_parallel(self, point: Point, groups: int) -> Point:
        """Return a point with `resources.data_parallel`, and batches worked out by it.

        Raises ScenarioError where the sizes of its batches do not fit.
        """
        here, _ = self._swept(point.sweep)
        here.set("resources.data_parallel", groups, "the plugin that parallelizes")
        device = point.scenario.resources.device
        sized, _ = self._work_of(here, point.stack, point.sweep, device)
        batches = {"train": sized.train, "resources": sized.resources}
        scenario = point.scenario.model_copy(update=batches)
        return point.model_copy(update={"scenario": scenario, "provisional": False})

    def _swept(self, sweep: Mapping[str, Any]) -> tuple[Draft, dict[str, Choice | None]]:
        """Return the written file with these values of the swept keys, and what became of its
        sizes that are `auto`; None stands for a stand-in."""
        here = copy.deepcopy(self.written)
        for key, value in sweep.items():
            kind = "zip" if key in self.scenario.zip else "sweep"
            here.set(key, value, self.where((kind, key)))
        chosen = self.choices.get(canonical_json(dict(sweep)), {})
        sizes = {key: chosen.get(key) for key in STAND_INS if here.get(key) == AUTO}
        for key, size in sizes.items():
            value = STAND_INS[key] if size is None else size.value
            here.set(key, value, here.where(tuple(key.split("."))))
        return here, sizes

    def points_at(self, sweep: dict[str, Any], device: str) -> Iterator[Point]:
        """Yield the points of all stacks with these values of the swept keys. Raises
        ScenarioError."""
        here, sizes = self._swept(sweep)
        for name, entry in self._stacks_at(here, sweep).items():
            place = self.ladder and self.ladder.place(name)
            stack = Stack(name=name, uses=entry.use, settings=entry.set, ladder=place or None)
            scenario, provisional = self._work_of(here, stack, sweep, device)
            yield Point(
                scenario=scenario, stack=stack, sweep=sweep, provisional=provisional, sizes=sizes
            )

    def _stacks_at(self, here: Draft, sweep: dict[str, Any]) -> Mapping[str, StackEntry]:
        """Return the stacks with swept options; those of a ladder follow its baseline."""
        if self.ladder is not None:
            baseline = here.stack(self.ladder.baseline)
            self.ladder.refuse_idle_items(baseline, here.get)
        if not any(key.startswith("stacks.") for key in sweep):
            return self.stacks
        stacks = {name: here.stack(name) for name in self.stacks}
        if self.ladder is not None:
            made = self.ladder.stacks(baseline)
            if len({content_of(stack) for stack in made.values()}) < len(made):
                raise ScenarioError(
                    f"{self.where(('ladder',))}: two stacks of the ladder are the same{at(sweep)}; "
                    "sweep over something else than what its baseline and its items share"
                )
            stacks.update({name: made[name] for name in made if name in stacks})
        return stacks

    def _work_of(
        self, here: Draft, stack: Stack, sweep: dict[str, Any], device: str
    ) -> tuple[Scenario, bool]:
        """Fold a stack's settings into the work, and validate the result; `device` is what `auto`
        means.

        Return too whether the batch fits only some groups of the devices, as a plugin may make.
        """
        work = copy.deepcopy({key: here.data[key] for key in here.data if key in Work.model_fields})
        for key, value in stack.settings.items():
            if key.split(".", maxsplit=1)[0] in ("measure", "name", "stacks", "sweep"):
                raise ScenarioError(
                    f"{here.where(('stacks', stack.name))}: a stack cannot set {key!r}; that "
                    "belongs to the whole comparison"
                )
            check_depth(key)
            set_path(work, key.split("."), value)
        groups = fewer_groups(work)
        if groups is not None:
            set_path(work, ["resources", "data_parallel"], groups)

        def where(location: Location) -> str:
            key = ".".join(map(str, location))
            own = ("stacks", stack.name, "set", key)
            return here.where(own if key in stack.settings else location)

        context = f" (stack {stack.name!r}{at(sweep)})"
        scenario = validate(Scenario, work, where, ScenarioError, context)
        changed = dict(scenario.environment.items() - self.scenario.environment.items())
        check_environment(changed, where, self.allow_environment)
        resources = scenario.resources
        if resources.device == AUTO_DEVICE:
            resources = resources.model_copy(update={"device": device})
            return scenario.model_copy(update={"resources": resources}), groups is not None
        try:
            device_type(resources.device)
        except ScenarioError as error:
            raise ScenarioError(f"{self.where(('resources', 'device'))}: {error}") from error
        return scenario, groups is not None


def resolve(draft: Draft, allow_environment: bool = False) -> ResolvedFile:
    """Validate a draft as a whole, expand its ladder and sweep its environments; the draft stays as
    it is.

    Raises ScenarioError with file, line and column.
    """
    written = copy.deepcopy(draft)
    ladder = expand_ladder(written)
    return _with_swept_environments(_validated(written, ladder, allow_environment))


def _with_swept_environments(file: ResolvedFile) -> ResolvedFile:
    """Return the file with its environments as an axis, unless something in it chooses one."""
    names = list(file.scenario.environments)
    chosen = {*file.scenario.sweep, *file.scenario.zip}
    chosen |= {key for stack in file.stacks.values() for key in stack.set}
    if not names or ENVIRONMENT in chosen or file.is_set(ENVIRONMENT):
        return file
    written = copy.deepcopy(file.written)
    written.set(f"sweep.{ENVIRONMENT}", names, file.where(("environments",)))
    sweep = {**file.scenario.sweep, ENVIRONMENT: tuple(names)}
    return replace(
        file, written=written, scenario=file.scenario.model_copy(update={"sweep": sweep})
    )


def _validated(written: Draft, ladder: Ladder | None, allow_environment: bool) -> ResolvedFile:
    scenario = validate(ScenarioFile, written.data, written.where, ScenarioError)
    # The baseline is written down, so that it stays the same when stacks are left out.
    scenario = scenario.model_copy(update={"baseline": scenario.baseline_name()})
    file = ResolvedFile(scenario, written, ladder, allow_environment)
    if scenario.baseline not in file.stacks:
        hint = did_you_mean(str(scenario.baseline), file.stacks)
        where = file.where(("baseline",))
        raise ScenarioError(f"{where}: no stack is called {scenario.baseline!r}{hint}")
    if len({len(values) for values in scenario.zip.values()}) > 1:
        where = file.where(("zip",))
        raise ScenarioError(f"{where}: keys that move together need equally many values")
    for kind, axes in (("sweep", scenario.sweep), ("zip", scenario.zip)):
        for key in axes:
            for problem in _problems_of_axis(file, kind, key):
                raise ScenarioError(f"{file.where((kind, key))}: {problem}")
    for name, entry in file.stacks.items():
        for key in STAND_INS:
            if entry.set.get(key) == AUTO:
                raise ScenarioError(
                    f"{file.where(('stacks', name, 'set', key))}: {key}: auto is alike for every "
                    f"stack; set it in the work, or give stack {name!r} a number"
                )
    for number, rule in enumerate(scenario.exclude):
        for problem in _problems_of_exclusion(rule, file.stacks):
            raise ScenarioError(f"{file.where(('exclude', number))}: {problem}")
    check_environment(scenario.environment, file.where, allow_environment)
    return file


def _problems_of_axis(file: ResolvedFile, kind: str, key: str) -> Iterator[str]:
    """Yield why a key cannot be swept."""
    first, *rest = key.split(".")
    if not getattr(file.scenario, kind)[key]:
        yield f"{key!r} has no values to sweep over"
    if kind == "zip" and key in file.scenario.sweep:
        yield f"{key!r} is in `sweep` and in `zip`; one of them is enough"
    if first not in ("stacks", *Work.model_fields):
        yield f"unknown key {key!r}{did_you_mean(first, Work.model_fields)}"
    if key in OF_THE_COMPARISON or first == "launcher":
        yield f"{key!r} cannot be swept: it belongs to the whole comparison"
    if file.is_set(key):
        set_at = file.where((first, *rest))
        yield f"{key!r} is swept, and also set at {set_at}; remove one of them"
    if first == "stacks" and file.ladder is not None:
        made = file.ladder.subsets.keys() - {file.ladder.baseline}
        if rest and rest[0] in made:
            yield f"{key!r} cannot be swept: what a ladder makes is changed in its items"


def _problems_of_exclusion(
    rule: Exclusion, known_stacks: Mapping[str, StackEntry]
) -> Iterator[str]:
    """Yield why a rule can never apply: it misspells a setting or a stack; options are unknown."""
    stacks = rule.when.get("stack", [])
    for name in stacks if isinstance(stacks, list) else [stacks]:
        if name not in known_stacks:
            yield f"no stack is called {name!r}{did_you_mean(str(name), known_stacks)}"
    for key in rule.when:
        *parents, last = key.split(".")
        known = known_keys(Scenario, parents) + ([] if parents else ["stack"])
        free = parents and parents[0] in (*Work.SLOTS, "environment")
        if not free and last not in known:
            yield f"unknown key {key!r}{did_you_mean(last, known)}"
