"""Automatic sizes of a scenario (`auto`), called by the entry points `accel_bench.sizes`.

`data.sequence_length: auto` is the 95th percentile of the data's sample lengths.
`train.micro_batch_size: auto` is the largest micro-batch that fits with every stack of a sweep
point. Sizes are cached, so that the same scenario plans the same experiments again. On a CPU the
cache is used only while free memory gives the same estimate.
"""

from __future__ import annotations

import math
import secrets
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from accel_bench.analysis.wording import size
from accel_bench.catalog.models import model_config
from accel_bench.documents.base import Frozen
from accel_bench.documents.canonical import digest
from accel_bench.documents.files import write_atomically
from accel_bench.errors import AccelBenchError, ScenarioError, WorkerError
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.info import Machine
from accel_bench.machine.probe import read_state
from accel_bench.planning.plan import Planned, PlanRequest
from accel_bench.planning.sizes import Settings, Sizing
from accel_bench.plugins.active import task_of
from accel_bench.result import Result, Status
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.runner.purpose import ask_ranks
from accel_bench.scenario.models import Scenario
from accel_bench.scenario.sweep import LENGTH, MICRO_BATCH, Choice
from accel_bench_advise.estimates.estimator import named_batch
from accel_bench_advise.estimates.lengths import summarize_lengths
from accel_bench_advise.estimates.memory import MemoryEstimator
from accel_bench_advise.estimates.schema import LengthSummary
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import Target, target_of

LARGEST = 1024
"""Largest micro-batch of the search: larger ones are not faster."""

POSITIONS = ("max_position_embeddings", "n_positions")
"""Configuration keys of the longest sequence that a model was made for."""

POSITIONS_BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "longformer", "mpnet", "roberta", "xlm-roberta", "xmod"}
)
"""Model types whose position ids start after the padding token's id."""

_ModelT = TypeVar("_ModelT", bound=Frozen)

SHORT: Settings = (
    ("measure.warmup", 1),
    ("measure.steps", 1),
    ("measure.phase_steps", 0),
    ("measure.rounds", 1),
)
"""Settings of a short trial of a micro-batch: one warm-up and one measured step."""

SMALLER_MAY_RUN = frozenset({Status.INVALID, Status.KILLED})
"""Statuses of trials, beside `oom`, after which smaller micro-batches are tried."""

NOT_OF_THE_DATA = {"sequence_length", "prefetch"}
"""Keys of `data` that do not change the samples."""


class FittingBatch(Frozen):
    """The largest micro-batch that fits, and the range of device memory in which it is so."""

    value: int

    because: str
    """Sentence on how the value was found."""

    least_bytes: float = 0.0
    """Estimated bytes of the most demanding stack at this size."""

    most_bytes: float | None = None
    """Estimated bytes at twice the size; None if the search ended before."""

    def holds(self, memory_bytes: float | None) -> bool:
        """Return whether `value` holds for a device with this memory; True if that is unknown."""
        if memory_bytes is None:
            return True
        return self.least_bytes <= memory_bytes < (self.most_bytes or math.inf)


def sequence_length(sizing: Sizing) -> tuple[int, str] | None:
    """Return the sequence length chosen by the sample lengths, and a sentence part on the choice.

    None if the sample lengths are not cached and the plan must not start a process to read them.
    """
    planned = sizing.stacks()[0]
    summary = Chooser(sizing).lengths(planned)
    return None if summary is None else length_choice(summary, planned.experiment.scenario)


def micro_batch_size(sizing: Sizing) -> tuple[int, str] | None:
    """Return the largest micro-batch that fits with all stacks, and a sentence part on the search.

    None if it is not cached and the plan must not search for it.
    """
    batch = Chooser(sizing).batch()
    return None if batch is None else (batch.value, batch.because)


@dataclass(frozen=True)
class Chooser:
    """Search for the automatic sizes of a sweep point."""

    sizing: Sizing

    @property
    def request(self) -> PlanRequest:
        """Request of the plan whose sizes are chosen."""
        return self.sizing.request

    def lengths(self, planned: Planned) -> LengthSummary | None:
        """Return the summary of sample lengths from the cache, else from the data plugin.

        None if it is not cached and the plan must not start a process to read the lengths.
        """
        place = _place("lengths", _of_the_data(planned))
        if (kept := _kept(place, LengthSummary)) or not self.sizing.work_out:
            return kept
        self.request.notify(f"{LENGTH}: auto: reading the lengths of the data's samples")
        try:
            trusted = self.request.trust_remote_code
            (text,) = ask_ranks(
                "lengths", planned, self.sizing.machine, one_process=True, trust_remote_code=trusted
            )
        except WorkerError as error:
            raise ScenarioError(f"{LENGTH}: auto: {error}") from error
        lengths = TypeAdapter(list[int]).validate_json(text)
        if not lengths:
            raise ScenarioError(f"{LENGTH}: auto: the data has no samples")
        summary = summarize_lengths(lengths)
        _keep(place, summary)
        return summary

    def batch(self) -> FittingBatch | None:
        """Return the largest micro-batch that fits with every stack, from the cache or a search.

        None if it is not cached and the plan must not search for it.
        """
        stacks, machine = self.sizing.stacks(), self.sizing.machine
        _refuse_dependent(stacks)
        identities = [planned.experiment.identity for planned in stacks]
        # A global batch size and an accumulation are one experiment with the stand-in of 1.
        search = self._search_end(stacks[0])
        place = _place("micro-batches", [identities, machine.memory_bytes, search])
        kept = _kept(place, FittingBatch)
        if kept and kept.holds(device_now(machine).memory_bytes):
            return kept
        if not self.sizing.work_out:
            return None
        fitting = self._estimated(stacks, search)
        value, because, failure = fitting.value, fitting.because, ""
        while (problem := self._problem(value)) is not None:
            if value == 1:
                raise ScenarioError(f"{MICRO_BATCH}: auto: even 1 does not run: {problem}")
            value, failure = value // 2, problem
        if value < fitting.value:
            because += (
                f"; {fitting.value:,} was estimated, and a trial of {2 * value:,} failed: {failure}"
            )
        fitting = fitting.model_copy(update={"value": value, "because": because})
        _keep(place, fitting)
        return fitting

    def _search_end(self, planned: Planned) -> int:
        """Return the largest micro-batch to try, at most `LARGEST`.

        It is a power of two, which divides the global batch if one is given.
        """
        scenario, file = planned.experiment.scenario, self.sizing.rough.file
        given = {*file.train.model_fields_set}
        given |= {key.removeprefix("train.") for key in planned.experiment.sweep}
        if "global_batch_size" not in given:
            return LARGEST
        samples = scenario.train.global_batch_size // scenario.data_parallel
        return min(LARGEST, samples & -samples)

    def _estimated(self, stacks: Sequence[Planned], search: int) -> FittingBatch:
        """Return the largest power of two up to `search` that is estimated to fit in every stack.

        Raises ScenarioError if a single sample does not fit, or if no stack can be estimated.
        """
        target = device_now(self.sizing.machine)
        with closing(Simulator(self.request.trust_remote_code)) as simulator:
            estimator = MemoryEstimator(simulator, target)
            known = [
                (planned, value)
                for planned in stacks
                if (value := self._largest(estimator, planned, search)) is not None
            ]
            if not known:
                text = "no stack can be estimated; give a number"
                raise ScenarioError(f"{MICRO_BATCH}: auto: {text}")
            value = power_of_two(min(value for _, value in known))
            least, *more = (
                max(estimator.need(planned, micro_batch_size=each) for planned, _ in known)
                for each in (value, 2 * value)
                if each <= search
            )
        fits = f"every stack that can be estimated fits {size(target.memory_bytes or 0)}"
        because = f"the largest power of two with which {fits}"
        if value == search:
            because = f"{fits}, and the search ends here"
        return FittingBatch(
            value=value, because=because, least_bytes=least, most_bytes=next(iter(more), None)
        )

    def _largest(self, estimator: MemoryEstimator, planned: Planned, search: int) -> int | None:
        """Return the largest micro-batch of one stack up to `search` that is estimated to fit.

        None if the stack cannot be estimated.
        """
        name = planned.experiment.stack.name
        self.request.notify(f"{MICRO_BATCH}: auto: estimating the memory of {name}")
        try:
            largest = estimator.largest_batch(planned, search).value
        except AccelBenchError as error:
            text = f"{MICRO_BATCH}: auto: {name} is only tried, since it cannot be estimated"
            self.request.notify(f"{text}: {error}")
            return None
        if largest < 1:
            memory = size(estimator.target.memory_bytes or 0)
            raise ScenarioError(
                f"{MICRO_BATCH}: auto: {named_batch(name, planned)} does not fit into {memory}"
            )
        return largest

    def _problem(self, value: int) -> str | None:
        """Try a micro-batch in a short run of every stack; return why it fails, or None.

        Any stack that runs out of memory fails the trial. In the first stack a refused run, such as
        for too little data, fails it too, and another failure raises ScenarioError. Other failures
        of later stacks are ignored, since the measurement reports them.
        """
        tried = Choice(key=MICRO_BATCH, value=value, because="")
        stacks = self.sizing.stacks([tried], SHORT)
        for number, planned in enumerate(map(_shortened, stacks)):
            name = planned.experiment.stack.name
            self.request.notify(f"{MICRO_BATCH}: auto: trying {value:,} with {name}")
            with tempfile.TemporaryDirectory(prefix="accel-bench-trial-") as folder:
                result = self._trial(planned, Path(folder))
            problem = "; ".join(result.reasons) or result.status.value
            if result.status is Status.OOM:
                return problem
            if number or result.status.completed:
                continue
            if result.status not in SMALLER_MAY_RUN:
                raise ScenarioError(
                    f"{MICRO_BATCH}: auto: the trial of {value:,} with {name} ended with "
                    f"{result.status.value}: {problem}"
                )
            return problem
        return None

    def _trial(self, planned: Planned, folder: Path) -> Result:
        """Run one trial of an experiment in worker processes, without storing its result."""
        attempt = make_attempt(
            folder,
            folder,
            f"auto-{secrets.token_hex(4)}",
            planned.machine(self.sizing.machine),
            experiment=planned.experiment,
            interpreter=planned.command,
            trust_remote_code=self.request.trust_remote_code,
        )
        return run_attempt(attempt, planned.active, lambda progress: None, lambda result: result)


def length_choice(summary: LengthSummary, scenario: Scenario) -> tuple[int, str]:
    """Return the sequence length for a summary of sample lengths, and how it was chosen, in words.

    It is at most the longest sequence that the scenario's model was made for.
    """
    longest = longest_of(model_config(scenario.model) or {})
    most = f"95 % of {summary.samples:,} samples have at most {summary.percentile_95:,} tokens"
    if longest is not None and longest < summary.sequence_length:
        return longest, f"{most}, and the model was made for {longest:,}"
    return summary.sequence_length, f"{most}, rounded up to a multiple of 8"


def longest_of(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence in tokens that a model was made for; None if unknown.

    `config` is the model's configuration.
    """
    for part in (config, config.get("text_config")):
        known = part if isinstance(part, Mapping) else {}
        if positions := [known[key] for key in POSITIONS if type(known.get(key)) is int]:
            behind = config.get("model_type") in POSITIONS_BEHIND_PADDING
            padding = known.get("pad_token_id", 1)
            return int(positions[0]) - (int(padding) + 1 if behind and padding is not None else 0)
    return None


def device_now(machine: Machine) -> Target:
    """Return the device with the memory available for a run: on a CPU the free memory."""
    target = target_of(machine, None)
    if target.kind != "cpu":
        return target
    free = read_state(False).cpu.memory_available_bytes
    return target._replace(memory_bytes=min(machine.memory_bytes, free))


def power_of_two(value: int) -> int:
    """Return the largest power of two up to a value of 1 or more."""
    return 1 << (value.bit_length() - 1)


def _refuse_dependent(stacks: Sequence[Planned]) -> None:
    """Raise ScenarioError if the loss depends on which samples share a micro-batch."""
    task = task_of(stacks[0].active) if stacks else None
    if task is not None and task.batch_dependent:
        raise ScenarioError(
            f"{MICRO_BATCH}: auto: the loss of task {task.name!r} depends on which samples share a "
            "micro-batch, so that its size is no free choice but part of the training: give a "
            "number"
        )


def _shortened(planned: Planned) -> Planned:
    """Return the experiment without steps after the window, with at most one evaluation batch."""
    scenario = planned.experiment.scenario
    short = {"steps": 0, "every": None, **({"batches": 1} if scenario.evaluates else {})}
    evaluate = scenario.evaluate.model_copy(update=short)
    experiment = planned.experiment.model_copy(
        update={"scenario": scenario.model_copy(update={"evaluate": evaluate})}
    )
    return replace(planned, experiment=experiment)


def _of_the_data(planned: Planned) -> Any:
    """Return the cache key of sample lengths: data settings, and the data plugin's version."""
    experiment = planned.experiment
    data = experiment.scenario.data.model_dump(mode="json", exclude=NOT_OF_THE_DATA)
    plugin = planned.active.answers("load_data")
    version = plugin.version.model_dump() if plugin else None
    environment = experiment.identity["environment"]
    prints = environment.get("fingerprints", {}) if isinstance(environment, dict) else {}
    print_of = prints.get(plugin.name) if plugin and isinstance(prints, dict) else None
    return [data, version, print_of]


def _place(kind: str, key: Any) -> Path:
    return cache_folder() / kind / f"{digest(key, 24)}.json"


def _kept(place: Path, model: type[_ModelT]) -> _ModelT | None:
    """Return the document in the cache file `place`; None if it is missing or invalid."""
    try:
        return model.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(place: Path, found: Frozen) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, found.model_dump_json())
