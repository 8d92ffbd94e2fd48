"""Resolution of a scenario file: requested changes, validation, stacks of a ladder, and sweep."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from accel_bench.analysis.statistics.verdict import MOST_ROUNDS
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.load import Location
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError, did_you_mean
from accel_bench.machine.devices import AUTO as AUTO_DEVICE
from accel_bench.machine.devices import device_type
from accel_bench.planning.made_stacks import MadeStacks, make_stacks
from accel_bench.planning.request import PlanRequest, refuse_too_many, requested_draft
from accel_bench.scenario.batches import fewer_groups
from accel_bench.scenario.draft import Draft, Setting, check_depth, set_path
from accel_bench.scenario.environment import check_environment
from accel_bench.scenario.models import Scenario, ScenarioFile, Stack, StackEntry, Work
from accel_bench.scenario.sweep import (
    AUTO,
    STAND_INS,
    Choice,
    Choices,
    Point,
    applies,
    at,
    count_points,
    make_tag,
    sweep_points,
    sweep_problems,
)

ENVIRONMENT = "resources.environment"
"""Key of the name of a Python environment."""


@dataclass(frozen=True)
class ResolvedFile:
    """Validated scenario file, from which the experiments of its sweep are made."""

    scenario: ScenarioFile
    """Content of the file, with its baseline named and with all stacks, a ladder's included."""

    written: Draft
    """Plain data of the file, with the location of every value."""

    ladder: MadeStacks | None

    allow_environment: bool
    """True if stacks and sweeps may set any environment variable."""

    choices: Choices = field(default_factory=dict)
    """Sizes that replace `auto`, by sweep point and key."""

    @property
    def stacks(self) -> Mapping[str, StackEntry]:
        """Stacks by name, in the order of the file."""
        return self.scenario.stacks

    def where(self, location: Location) -> str:
        """Return the location of a value in the file, or of the nearest enclosing known value."""
        return self.written.where(location)

    def is_set(self, key: str) -> bool:
        """Return whether the file has a value for a dotted key."""
        return self.written.get(key) is not None

    def with_settings(self, settings: Sequence[Setting]) -> ResolvedFile:
        """Return the file with changed settings. Raises ScenarioError for an invalid setting."""
        if not settings:
            return self
        written = self.written.with_values(settings)
        file = _validated(written, self.ladder, self.allow_environment)
        return replace(file, choices=self.choices).with_stacks(self.stacks)

    def with_stacks(self, names: Iterable[str]) -> ResolvedFile:
        """Return the file with the named stacks only."""
        stacks = {name: self.stacks[name] for name in names}
        return replace(self, scenario=self.scenario.model_copy(update={"stacks": stacks}))

    def points(self, device: str) -> Iterator[Point]:
        """Yield each stack at each sweep point, in the order of sweep points, then of stacks.

        `device` replaces `resources.device: auto`. Raises ScenarioError for invalid settings, for
        an environment variable that is not allowed, and at the end for an exclusion by an unknown
        key.
        """
        rules = self.scenario.exclude
        tagged: dict[str, dict[str, Any]] = {}
        idle = [(number, key) for number, rule in enumerate(rules) for key in rule.when]
        for sweep in sweep_points(self.scenario):
            for point in self.points_at(sweep, device):
                facts = point.facts() if rules else {}
                idle = [(number, key) for number, key in idle if key not in facts]
                reasons = tuple(rule.because for rule in rules if applies(rule, facts))
                with self._located("tag"):
                    tag = make_tag(self.scenario.tag, point)
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

    @contextmanager
    def _located(self, *location: str) -> Iterator[None]:
        """Put a value's location before the text of a ScenarioError that the block raises."""
        try:
            yield
        except ScenarioError as error:
            raise ScenarioError(f"{self.where(location)}: {error}") from error

    def with_data_parallel(self, point: Point, groups: int) -> Point:
        """Return a point with a number of data-parallel groups, and batch sizes for it.

        Raises ScenarioError for unfit batch sizes.
        """
        swept, _ = self._swept(point.sweep)
        setting = ("resources.data_parallel", groups, "the plugin that parallelizes")
        here = swept.with_values([setting])
        device = point.scenario.resources.device
        sized, _ = self._work_of(here, point.stack, point.sweep, device)
        batches = {"train": sized.train, "resources": sized.resources}
        scenario = point.scenario.model_copy(update=batches)
        return point.model_copy(update={"scenario": scenario, "provisional": False})

    def _swept(self, sweep: Mapping[str, Any]) -> tuple[Draft, dict[str, Choice | None]]:
        """Return the file's data at the given values of swept keys, and the size of each key with
        `auto` (None if a placeholder is used)."""
        here = self.written.with_values(
            (key, value, self.where(("zip" if key in self.scenario.zip else "sweep", key)))
            for key, value in sweep.items()
        )
        chosen = self.choices.get(canonical_json(dict(sweep)), {})
        sizes = {key: chosen.get(key) for key in STAND_INS if here.get(key) == AUTO}
        for key, size in sizes.items():
            value = STAND_INS[key] if size is None else size.value
            here.set(key, value, here.where(tuple(key.split("."))))
        return here, sizes

    def points_at(self, sweep: dict[str, Any], device: str) -> Iterator[Point]:
        """Yield each stack at the swept values `sweep`; `device` and errors are as for `points`."""
        here, sizes = self._swept(sweep)
        for name, entry in self._stacks_at(here, sweep).items():
            place = self.ladder and self.ladder.place(name)
            stack = Stack(name=name, uses=entry.use, settings=entry.set, ladder=place or None)
            scenario, provisional = self._work_of(here, stack, sweep, device)
            yield Point(
                scenario=scenario, stack=stack, sweep=sweep, provisional=provisional, sizes=sizes
            )

    def _stacks_at(self, here: Draft, sweep: dict[str, Any]) -> Mapping[str, StackEntry]:
        """Return the stacks of `here`, the file's data with the swept values `sweep` set."""
        made = self.ladder.stacks_at(here, sweep) if self.ladder is not None else {}
        if not any(key.startswith("stacks.") for key in sweep):
            return self.stacks
        stacks = {name: here.stack(name) for name in self.stacks}
        stacks.update({name: made[name] for name in made if name in stacks})
        return stacks

    def _work_of(
        self, here: Draft, stack: Stack, sweep: dict[str, Any], device: str
    ) -> tuple[Scenario, bool]:
        """Return the validated scenario with a stack's settings; `device` replaces `auto`.

        The second value is True if the batch is too small for one data-parallel group per device,
        so that fewer groups are assumed.
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
        with self._located("resources", "device"):
            device_type(resources.device)
        return scenario, groups is not None


def resolve(draft: Draft, allow_environment: bool = False) -> ResolvedFile:
    """Return a draft validated, with its ladder's stacks and a sweep over its environments.

    The draft itself is unchanged. `allow_environment` lets it set any environment variable. Raises
    ScenarioError for invalid input, with file, line and column.
    """
    written = copy.deepcopy(draft)
    ladder = make_stacks(written)
    return _with_swept_environments(_validated(written, ladder, allow_environment))


def _with_swept_environments(file: ResolvedFile) -> ResolvedFile:
    """Return the file with a sweep over its environments, unless it already chooses one."""
    names = list(file.scenario.environments)
    chosen = {*file.scenario.sweep, *file.scenario.zip}
    chosen |= {key for stack in file.stacks.values() for key in stack.set}
    if not names or ENVIRONMENT in chosen or file.is_set(ENVIRONMENT):
        return file
    axis = (f"sweep.{ENVIRONMENT}", names, file.where(("environments",)))
    sweep = {**file.scenario.sweep, ENVIRONMENT: tuple(names)}
    return replace(
        file,
        written=file.written.with_values([axis]),
        scenario=file.scenario.model_copy(update={"sweep": sweep}),
    )


def _validated(written: Draft, ladder: MadeStacks | None, allow_environment: bool) -> ResolvedFile:
    scenario = validate(ScenarioFile, written.data, written.where, ScenarioError)
    # The baseline is written down, so that it stays the same when stacks are left out.
    scenario = scenario.model_copy(update={"baseline": scenario.baseline_name()})
    file = ResolvedFile(scenario, written, ladder, allow_environment)
    if scenario.baseline not in file.stacks:
        hint = did_you_mean(str(scenario.baseline), file.stacks)
        where = file.where(("baseline",))
        raise ScenarioError(f"{where}: no stack is called {scenario.baseline!r}{hint}")
    made = ladder.names if ladder else ()
    for location, problem in sweep_problems(scenario, written, made):
        raise ScenarioError(f"{file.where(location)}: {problem}")
    check_environment(scenario.environment, file.where, allow_environment)
    return file


def resolve_request(draft: Draft, request: PlanRequest) -> ResolvedFile:
    """Return the resolved file with a request's changes. Raises ScenarioError for invalid ones."""
    file = resolve(requested_draft(draft, request), request.allow_environment)
    return replace(file, choices=request.choices).with_stacks(_chosen_stacks(file, request))


def _chosen_stacks(file: ResolvedFile, request: PlanRequest) -> list[str]:
    """Return the names of the stacks of `--only` and, unless `--no-baseline`, of the baseline."""
    baseline, only = file.scenario.baseline_name(), request.stacks_of(file.scenario.name)
    for name in only:
        if name not in file.stacks:
            raise ScenarioError(f"no stack is called {name!r}{did_you_mean(name, file.stacks)}")
    chosen = [name for name in file.stacks if not request.only or name in {*only, baseline}]
    if request.no_baseline and baseline not in only:
        chosen = [name for name in chosen if name != baseline]
    if not chosen:
        raise ScenarioError("--no-baseline leaves no stack to run")
    return chosen


def chosen_points(file: ResolvedFile, request: PlanRequest, device: str) -> list[Point]:
    """Return each stack at each requested sweep point; `device` replaces `resources.device: auto`.
    Raises ScenarioError for invalid settings, an unknown tag or too many runs."""
    rounds = file.scenario.measure.rounds
    runs = count_points(file.scenario) * (MOST_ROUNDS if rounds == "auto" else rounds)
    refuse_too_many(file.scenario.name, runs, request.max_runs, file.scenario.sweep)
    points = list(file.points(device))
    known = {point.tag for point in points}
    for tag in request.tags:
        if not fnmatch.filter(known, tag):
            raise _unknown_tag(tag, known)
    chosen = {name for tag in request.tags or ("*",) for name in fnmatch.filter(known, tag)}
    if request.reference_point and request.reference_point not in chosen:
        raise _unknown_tag(request.reference_point, chosen)
    points = [point for point in points if point.tag in chosen]
    return [point for point in points if request.point in ("", canonical_json(point.sweep))]


def _unknown_tag(tag: str, known: Collection[str]) -> ScenarioError:
    hint = did_you_mean(tag, filter(None, known))
    return ScenarioError(f"no point of the sweep has the tag {tag!r}{hint}")
