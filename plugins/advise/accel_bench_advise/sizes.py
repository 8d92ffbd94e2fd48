"""Work out the sizes that a scenario leaves to the program, through the door `accel_bench.sizes`.

`data.sequence_length: auto` is the 95th percentile of the data's samples; `train.micro_batch_size:
auto` the largest micro-batch with which every stack of a sweep point fits. What was worked out is
kept with the caches: the same scenario plans the same experiments again, on a CPU for as long as
the memory that is free leaves the estimate as it is.
"""

from __future__ import annotations

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
from accel_bench.planning.plan import Planned, PlanRequest
from accel_bench.planning.sizes import Settings, Sizing
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
from accel_bench_advise.micro_batch import (
    EstimatedBatch,
    KeptBatch,
    device_now,
    estimated_batch,
    range_of,
    refuse_dependent,
)

POSITIONS = ("max_position_embeddings", "n_positions")
"""Keys of configurations with the longest sequence that a model was made for."""

POSITIONS_BEHIND_PADDING = frozenset(
    {"camembert", "data2vec-text", "longformer", "mpnet", "roberta", "xlm-roberta", "xmod"}
)
"""Model types whose first position is the one behind the id of padding."""

_ModelT = TypeVar("_ModelT", bound=Frozen)

SHORT: Settings = (
    ("measure.warmup", 1),
    ("measure.steps", 1),
    ("measure.phase_steps", 0),
    ("measure.rounds", 1),
)
"""Settings of a trial of a micro-batch: two steps."""

SMALLER_MAY_RUN = frozenset({Status.INVALID, Status.KILLED})
"""How trials end, beside running out of memory, of which smaller micro-batches may run."""

NOT_OF_THE_DATA = {"sequence_length", "prefetch"}
"""Keys of `data` that change no sample."""


def sequence_length(sizing: Sizing) -> tuple[int, str] | None:
    """Return the 95th percentile of the lengths of the data's samples, and why it is that."""
    planned = sizing.stacks()[0]
    if (summary := Chooser(sizing).lengths(planned)) is None:
        return None
    choice = length_choice(summary, planned.experiment.scenario)
    return choice.value, choice.because


def micro_batch_size(sizing: Sizing) -> tuple[int, str] | None:
    """Return the largest micro-batch of all stacks, estimated and tried, and why it is that."""
    choice = Chooser(sizing).batch()
    return None if choice is None else (choice.value, choice.because)


@dataclass(frozen=True)
class Chooser:
    """Works out the sizes of a sweep point."""

    sizing: Sizing

    @property
    def request(self) -> PlanRequest:
        """What was asked of the plan."""
        return self.sizing.request

    def lengths(self, planned: Planned) -> LengthSummary | None:
        """Summarize the lengths of the samples, which the data plugin reads where they are new."""
        place = _place("lengths", _of_the_data(planned))
        if (kept := _kept(place, LengthSummary)) or not self.sizing.work_out:
            return kept
        self.request.notify(f"{LENGTH}: auto: reading the lengths of the data's samples")
        try:
            trusted = self.request.trust_remote_code
            (found,) = ask_ranks(
                "lengths", planned, self.sizing.machine, one_process=True, trust_remote_code=trusted
            )
        except WorkerError as error:
            raise ScenarioError(f"{LENGTH}: auto: {error}") from error
        lengths = TypeAdapter(list[int]).validate_json(found)
        if not lengths:
            raise ScenarioError(f"{LENGTH}: auto: the data has no samples")
        summary = summarize_lengths(lengths)
        _keep(place, summary)
        return summary

    def batch(self) -> Choice | None:
        """Return the largest micro-batch with which every stack fits."""
        stacks = self.sizing.stacks()
        refuse_dependent(stacks)
        identities = [one.experiment.identity for one in stacks]
        # A global batch size and an accumulation are one experiment with the stand-in of 1.
        search = range_of(self.sizing.rough, stacks[0])
        machine = self.sizing.machine
        place = _place("micro-batches", [identities, machine.memory_bytes, search])
        kept = _kept(place, KeptBatch)
        if kept and kept.estimated.holds(device_now(machine).memory_bytes):
            return kept.choice
        if not self.sizing.work_out:
            return None
        estimated = self._estimated(stacks, search)
        value, because = estimated.value, estimated.because
        failure = ""
        while (problem := self._problem(value)) is not None:
            if value == 1:
                raise ScenarioError(f"{MICRO_BATCH}: auto: even 1 does not run: {problem}")
            value, failure = value // 2, problem
        if value < estimated.value:
            because += (
                f"; {estimated.value:,} was estimated, and a trial of {2 * value:,} failed: "
                f"{failure}"
            )
        choice = Choice(key=MICRO_BATCH, value=value, because=because)
        _keep(place, KeptBatch(choice=choice, estimated=estimated))
        return choice

    def _estimated(self, stacks: Sequence[Planned], search: int) -> EstimatedBatch:
        """Return the largest micro-batch that is estimated to fit in every stack.

        Raises ScenarioError where not one sample fits, or where it cannot be estimated.
        """
        target = device_now(self.sizing.machine)
        memory = size(target.memory_bytes or 0)
        with closing(Simulator(self.request.trust_remote_code)) as simulator:
            estimator = MemoryEstimator(simulator, target)
            every = [self._largest(estimator, planned, search, memory) for planned in stacks]
            return estimated_batch(estimator, stacks, every, search)

    def _largest(
        self, estimator: MemoryEstimator, planned: Planned, search: int, memory: str
    ) -> int | None:
        """Return the largest micro-batch of one stack; None where only its trial can tell."""
        name = planned.experiment.stack.name
        self.request.notify(f"{MICRO_BATCH}: auto: estimating the memory of {name}")
        try:
            found = estimator.largest_batch(planned, search).value
        except AccelBenchError as error:
            text = f"{MICRO_BATCH}: auto: {name} is only tried, since it cannot be estimated"
            self.request.notify(f"{text}: {error}")
            return None
        if found < 1:
            raise ScenarioError(
                f"{MICRO_BATCH}: auto: {named_batch(name, planned)} does not fit into {memory}"
            )
        return found

    def _problem(self, value: int) -> str | None:
        """Try a micro-batch in every stack; return why one does not fit, None where all do.

        In the first stack a run that is refused, as where there is too little data, is a reason
        too, and any other failure ends the search with a ScenarioError; in another stack the run
        itself will say it.
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
        """Run one process group to its end; nothing of it is stored."""
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


def length_choice(summary: LengthSummary, scenario: Scenario) -> Choice:
    """Return the sequence length for lengths, at most what the model was made for."""
    longest = longest_of(model_config(scenario.model) or {})
    value = summary.sequence_length
    because = (
        f"95 % of {summary.samples:,} samples have at most {summary.percentile_95:,} tokens, "
        "rounded up to a multiple of 8"
    )
    if longest is not None and longest < value:
        value = longest
        because = (
            f"95 % of {summary.samples:,} samples have at most {summary.percentile_95:,} tokens, "
            f"and the model was made for {longest:,}"
        )
    return Choice(key=LENGTH, value=value, because=because)


def longest_of(config: Mapping[str, Any]) -> int | None:
    """Return the longest sequence that a model was made for; None where nothing says it."""
    for part in (config, config.get("text_config")):
        known = part if isinstance(part, Mapping) else {}
        if found := [known[key] for key in POSITIONS if type(known.get(key)) is int]:
            behind = config.get("model_type") in POSITIONS_BEHIND_PADDING
            padding = known.get("pad_token_id", 1)
            return int(found[0]) - (int(padding) + 1 if behind and padding is not None else 0)
    return None


def _shortened(planned: Planned) -> Planned:
    """Return an experiment without a learning curve, that evaluates at most one batch."""
    scenario = planned.experiment.scenario
    short = {"steps": 0, "every": None, **({"batches": 1} if scenario.evaluates else {})}
    evaluate = scenario.evaluate.model_copy(update=short)
    experiment = planned.experiment.model_copy(
        update={"scenario": scenario.model_copy(update={"evaluate": evaluate})}
    )
    return replace(planned, experiment=experiment)


def _of_the_data(planned: Planned) -> Any:
    """Return what the lengths of the samples depend on: the data plugin and what it reads."""
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
    """Return what was worked out before; None where nothing was."""
    try:
        return model.model_validate_json(place.read_bytes())
    except (OSError, ValidationError):
        return None


def _keep(place: Path, found: Frozen) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place, found.model_dump_json())
