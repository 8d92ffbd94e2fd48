"""Models of a scenario as users write it and as resolved, with a docstring for every field."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, field_validator, model_validator

from accel_bench.documents.base import Described, Frozen, JsonValue
from accel_bench.documents.validate import LocatedError
from accel_bench.scenario.batches import complete_batch, complete_inference, count_devices
from accel_bench.scenario.settings import (
    LONGEST_WARMUP,
    MAXIMUM_SAMPLES,
    MOST_DISCARDED,
    Evaluate,
    Inference,
    Measure,
    PythonEnvironment,
    Resources,
    SizedTrain,
    TagRule,
    Train,
)
from accel_bench.scenario.uses import (
    CALLS,
    TOKENS,
    AdapterUse,
    DataUse,
    EngineUse,
    LauncherUse,
    ModelUse,
    OptimizerUse,
    ParallelUse,
    SizedDataUse,
    TaskUse,
    Use,
    slot_defaults,
)

STACK_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
"""Name of a stack or scenario; it becomes a folder's name, so it is short and has no separator."""

StackName: TypeAlias = Annotated[str, Field(pattern=STACK_NAME)]

BASELINE = "baseline"
"""Name of the baseline if the file names none."""


class LadderPosition(Frozen):
    """Position of a stack on the scenario's ladder: the items that it holds."""

    items: tuple[str, ...]
    """Labels of all items of the ladder, in their order."""

    holds: tuple[tuple[int, ...], ...]
    """Numbers, from 0, of items that the stack holds; several lists if they are equivalent."""


class Stack(Frozen):
    """An ordered, named list of plugin uses; its settings are already merged into the scenario."""

    name: StackName
    """Name in tables and folders."""

    uses: tuple[Use, ...] = ()
    """Plugin uses in the order in which their hooks are called."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work that this stack changes, by dotted key."""

    ladder: LadderPosition | None = None
    """Position of the stack on the scenario's ladder, if any; no part of an experiment's id."""


def _default_metrics() -> tuple[Use, ...]:
    return tuple(Use(use=name) for name in slot_defaults().metrics)


class Work(Described):
    """Training or inference work that all stacks share: model, data and settings."""

    name: StackName = "unnamed"
    """Short name of the scenario."""

    description: str = ""
    """The question that the scenario answers, in a sentence."""

    task: TaskUse = Field(default_factory=TaskUse)
    """Objective of the training. `operation`: nothing is trained, one operation is called on its
    own, and its calls are counted in place of tokens."""

    mode: Literal["train", "inference"] = "train"
    """Quantity that is measured: steps of training, or requests that the model answers."""

    model: ModelUse = Field(default_factory=ModelUse)
    """Model that is trained, or that answers requests."""

    adapter: AdapterUse = Field(default_factory=AdapterUse)
    """Adapter that is trained on top of the model."""

    data: DataUse = Field(default_factory=DataUse)
    """Training data."""

    optimizer: OptimizerUse = Field(default_factory=OptimizerUse)
    """Optimizer of the trained parameters."""

    engine: EngineUse = Field(default_factory=EngineUse)
    """Engine that drives the optimizer steps."""

    parallel: ParallelUse = Field(default_factory=ParallelUse)
    """Parallelism: how devices share the work."""

    launcher: LauncherUse = Field(default_factory=LauncherUse)
    """Launcher of the processes."""

    metrics: tuple[Use, ...] = Field(default_factory=_default_metrics, strict=False)
    """Metrics plugins, which measure beside time, tokens and loss."""

    train: Train = Train()
    """Settings of training."""

    inference: Inference = Inference()
    """Requests to the model in `mode: inference`."""

    resources: Resources = Resources()
    """Resources that a run may use."""

    measure: Measure = Measure()
    """Settings of the measurement."""

    evaluate: Evaluate = Evaluate()
    """Evaluation of the model on held-out data, outside of the measured window."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the worker, by an allow-list."""

    @field_validator("environment", mode="before")
    @classmethod
    def _numbers_are_texts(cls, raw: Any) -> Any:
        """Turn numeric values of environment variables, as in `OMP_NUM_THREADS: 1`, into texts."""
        if not isinstance(raw, dict):
            return raw
        return {key: str(value) if type(value) is int else value for key, value in raw.items()}

    SLOTS: ClassVar[tuple[str, ...]] = (
        "task",
        "model",
        "adapter",
        "data",
        "optimizer",
        "engine",
        "parallel",
        "launcher",
    )


class Scenario(Work):
    """A resolved work: sweep values and a stack's settings merged, sizes and defaults computed."""

    data: SizedDataUse = Field(default_factory=SizedDataUse)
    """Training data, with its sequence length."""

    train: SizedTrain = SizedTrain()
    """Settings of training, with all sizes."""

    @property
    def world_size(self) -> int:
        """Number of processes, one per device."""
        return self.resources.world_size

    @property
    def data_parallel(self) -> int:
        """Number of groups of processes that each take batches of their own."""
        return self.resources.data_parallel or self.world_size

    @property
    def counts(self) -> str:
        """Plural noun for the counted elements, such as `images`; `calls` if nothing is trained."""
        return self.task.counts or TOKENS

    @property
    def calls_alone(self) -> bool:
        """True if an operation is called on its own, so that calls are counted."""
        return self.counts == CALLS

    @property
    def trains(self) -> bool:
        """True if a model is trained, and no single operation is called nor a request answered."""
        return not (self.calls_alone or self.generates)

    @property
    def generates(self) -> bool:
        """True if the model answers requests, and nothing is trained."""
        return self.mode == "inference"

    @property
    def compute_dtype(self) -> str:
        """Dtype of matmuls and attention."""
        return self.train.work_dtype or self.model.dtype

    @property
    def evaluates(self) -> bool:
        """True if the model is evaluated on held-out samples."""
        return self.data.held_out != 0 and self.evaluate.batches != 0

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, raw: Any) -> Any:
        """Compute settings that follow from others: the batch sizes and the parallel plugin."""
        if not isinstance(raw, dict):
            return raw
        raw = complete_inference(raw)
        resources = raw.get("resources") or {}
        world_size = count_devices(resources)
        if world_size is None:
            return raw
        groups = resources.get("data_parallel")
        if isinstance(groups, int) and groups > 0 and world_size % groups:
            raise LocatedError(
                ("resources", "data_parallel"),
                f"resources.data_parallel {groups} does not divide {world_size} devices",
            )
        groups = groups if isinstance(groups, int) and groups > 0 else world_size
        done = {**raw, "train": complete_batch(raw.get("train") or {}, groups)}
        if world_size > 1 and "parallel" not in raw:
            done["parallel"] = slot_defaults().several_devices
        return done

    @model_validator(mode="after")
    def _is_stored(self) -> Scenario:
        """Raise an error if warm-up and windows have more samples than a stored run can hold."""
        measure, windows = self.measure, 1 + MOST_DISCARDED
        warmup = LONGEST_WARMUP if measure.warmup == "auto" else measure.warmup
        after = self.evaluate.steps
        samples = (warmup + windows * measure.steps + after) * self.world_size
        if samples > MAXIMUM_SAMPLES:
            largest = max((windows * measure.steps, "steps"), (warmup, "warmup"))
            more = f" + evaluate.steps {after}" if after else ""
            raise LocatedError(
                ("evaluate", "steps") if after > largest[0] else ("measure", largest[1]),
                f"(warm-up {warmup} + up to {windows} windows x measure.steps {measure.steps}"
                f"{more}) x {self.world_size} devices = {samples} samples; the limit is "
                f"{MAXIMUM_SAMPLES}",
            )
        return self

    @model_validator(mode="after")
    def _has_what_it_evaluates(self) -> Scenario:
        """Raise an error if settings of an evaluation lack `data.held_out` or `evaluate.steps`."""
        evaluate = self.evaluate
        for key in ("batches", "micro_batch_size", "every"):
            if getattr(evaluate, key) is not None and not self.data.held_out:
                problem = f"evaluate.{key} needs data.held_out, such as 0.1 for a tenth of the data"
                raise LocatedError(("evaluate", key), problem)
        if evaluate.every is not None and not evaluate.steps:
            raise LocatedError(("evaluate", "every"), "evaluate.every needs evaluate.steps")
        return self


class Exclusion(Described):
    """Points of the sweep that are not to be run, with the reason that the plan prints."""

    when: dict[str, JsonValue] = Field(min_length=1)
    """Dotted keys, each with a value or a list of values; all must match, `stack` included."""

    because: str = Field(min_length=1)
    """Reason for the exclusion, in a sentence."""


class StackEntry(Described):
    """A stack as a file spells it out: the settings it changes and the plugins it uses."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work that the stack changes, by dotted key."""

    use: tuple[Use, ...] = ()
    """Plugin uses in order."""

    description: str = ""
    """Description of the stack, in a line."""


class ScenarioFile(Work):
    """One scenario file: the work, the stacks to compare on it, and what to sweep."""

    trackers: tuple[Use, ...] = ()
    """Plugins that log runs beside the store, such as `tensorboard`. They change no experiment."""

    slow: bool = False
    """A slow scenario runs only when it is named, never as part of a folder."""

    stacks: dict[StackName, StackEntry] = Field(default_factory=lambda: {BASELINE: StackEntry()})
    """Stacks by name: a list of uses, `{set: ..., use: [...]}`, or the name of a named stack."""

    ladder: tuple[JsonValue, ...] = ()
    """Items to stack on the baseline one after the other, and to leave out of all one at a time.

    A plugin, `plugin.option` or `section.key` to be switched on, `{use: plugin, option: value}`, or
    `{set: {key: value}, use: [...]}`; a mapping may have a `name`.
    """

    baseline: str | None = None
    """Stack that the others are compared with; else the stack `baseline`, else the first."""

    sweep: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted keys with lists of values; all combinations are run."""

    zip: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted keys with lists of values that change together: the first values, the second ..."""

    environments: dict[StackName, PythonEnvironment] = Field(default_factory=dict)
    """Python environments by name, swept unless `resources.environment` chooses one."""

    exclude: tuple[Exclusion, ...] = ()
    """Points of the sweep that are not run."""

    tag: TagRule = TagRule()
    """Rule for the names of sweep points in tables and folders; `off` gives no names."""

    @field_validator("stacks")
    @classmethod
    def _some_stack(cls, stacks: dict[str, StackEntry]) -> dict[str, StackEntry]:
        if not stacks:
            raise ValueError("at least one stack is needed; `baseline: []` is the plainest")
        return stacks

    def baseline_name(self) -> str:
        """Return the baseline's name: as written, else `baseline`, else the first stack."""
        if self.baseline is not None:
            return self.baseline
        return BASELINE if BASELINE in self.stacks else next(iter(self.stacks))
