"""The scenario as the user writes it and as it is resolved: pydantic models, every field
documented."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetJsonSchemaHandler, field_validator, model_serializer, model_validator
from pydantic_core import CoreSchema

from accel_bench.scenario.base import Frozen, JsonValue, PositiveInt

DType = Literal["float32", "bfloat16", "float16"]

STACK_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$"
"""Names become folder names, so they are short and hold no separator."""


class Use(Frozen):
    """One use of a plugin: its name and its options.

    Written as a bare name, or as a mapping with `use` and the plugin's options beside it. Keys that
    the slot does not own are the plugin's, and are validated by the plugin's own `Options` on
    activation. YAML's `use: null` means the plugin that is called `null`.
    """

    use: str = Field(min_length=1, max_length=64)
    """Name of the plugin, as `accel-bench plugins` lists it."""

    options: dict[str, JsonValue] = Field(default_factory=dict)
    """The plugin's options; in files they stand beside `use`, not under a key of their own."""

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, raw: Any) -> Any:
        """Turn `name` and `{use: name, option: value}` into `{use: name, options: {...}}`."""
        if isinstance(raw, str):
            return {"use": raw}
        if not isinstance(raw, dict):
            return raw
        owned = {key: value for key, value in raw.items() if key in cls.model_fields}
        if "use" in raw and raw["use"] is None:
            owned["use"] = "null"
        rest = {key: value for key, value in raw.items() if key not in owned}
        if rest:
            owned["options"] = {**owned.get("options", {}), **rest}
        return owned

    @model_serializer(mode="wrap")
    def _beside_use(self, handler: Any) -> dict[str, Any]:
        """Write options beside `use`, as they are read."""
        plain = handler(self)
        options = plain.pop("options")
        return {**plain, **options}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Tell editors what files may hold: a name, or a mapping that leaves room for options."""
        written = handler.resolve_ref_schema(handler(schema))
        written["additionalProperties"] = True
        written.get("properties", {}).pop("options", None)
        return {"anyOf": [{"type": "string"}, written]}

    @classmethod
    def owned_keys(cls) -> frozenset[str]:
        """Keys that belong to the slot, so that no plugin may use them as option names."""
        return frozenset(cls.model_fields) - {"options"}


class ModelUse(Use):
    """Which model, how its base weights come to be and how they are stored."""

    use: str = "huggingface"
    """Plugin that loads the model."""

    id: str = "tiny-llama-cpu"
    """A name of the catalogue (`accel-bench models list`), a local directory, or a hub id."""

    weights: Literal["random", "pretrained"] = "random"
    """`random`: created on the device from the configuration with one seed; nothing is downloaded.
    """

    dtype: DType = "float32"
    """How base weights are stored; `train.precision` says how they are computed with."""

    attention: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] = "sdpa"
    """Attention implementation, in transformers' names."""

    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Changes of the architecture's configuration, such as `num_hidden_layers: 4`."""

    revision: str | None = None
    """Revision of a hub model; required with `--trust-remote-code`."""


class AdapterUse(Use):
    """What is trained instead of the base weights; `none` trains all of them."""

    use: str = "none"
    """Plugin that adds the adapter, such as `lora`."""


class DataUse(Use):
    """What the model is trained on."""

    use: str = "synthetic"
    """Plugin that brings the data, such as `synthetic` or `text`."""

    sequence_length: PositiveInt = 512
    """Tokens in one sample, padding included."""

    seed: int = Field(0, ge=0)
    """Seed of the order of samples, and of their content where it is made up."""


class OptimizerUse(Use):
    """What updates the parameters; its learning rate is `train.learning_rate`."""

    use: str = "adamw"
    """Plugin that builds the optimizer: `adamw`, `adam`, `sgd`, `adafactor`, ..."""


class EngineUse(Use):
    """What drives the steps."""

    use: str = "torch"
    """Plugin that builds the engine: `torch`, or `null` to measure the harness."""


class ParallelUse(Use):
    """How several devices share the work."""

    use: str = "none"
    """Plugin that parallelizes: `none`, or `ddp` (the default when there is more than one device).
    """


class LauncherUse(Use):
    """What starts the ranks."""

    use: str = "local"
    """Plugin that starts processes; `local` starts them on this machine."""


class Train(Frozen):
    """Settings of training, per device where a size is meant."""

    micro_batch_size: PositiveInt = 1
    """Samples in one forward pass, per device."""

    gradient_accumulation: PositiveInt = 1
    """Forward passes in one optimizer step."""

    global_batch_size: PositiveInt = 1
    """Samples in one optimizer step over all devices: any two of the three give the third."""

    precision: Literal["as-is", "bf16-autocast", "fp16-autocast"] = "as-is"
    """How matmuls compute; `as-is` means in the dtype of the weights."""

    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass instead of keeping them (non-reentrant)."""

    max_grad_norm: float | None = Field(None, gt=0)
    """Clip gradients to this total norm; null does not clip."""

    learning_rate: float = Field(1e-3, ge=0)
    """Constant learning rate."""

    seed: int = Field(0, ge=0)
    """Seed of random weights, adapters and dropout; the same for every stack."""

    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """torch.set_float32_matmul_precision: whether float32 matmuls may use tf32 or bf16."""


class Resources(Frozen):
    """What one run may use."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is a GPU where there is one; the resolved scenario says which it was."""

    devices: PositiveInt = 1
    """Devices on each node; one process each."""

    nodes: PositiveInt = 1
    """Machines."""

    threads: PositiveInt | None = None
    """CPU threads of each process; null divides the cores among the processes of a node."""


class Measure(Frozen):
    """How a run is measured."""

    warmup: PositiveInt | Literal["auto"] = "auto"
    """Steps before the window; `auto` looks for a plateau in round 1 and freezes the largest count.
    """

    steps: PositiveInt = 20
    """Steps of the measured window."""

    repeats: PositiveInt = 5
    """Rounds: each runs every stack once, in fresh processes."""

    sync: Literal["window", "each"] = "window"
    """Device synchronisations by the harness: one for the window, or one each step (for parity)."""

    seed: int = Field(0, ge=0)
    """Seed of the order of stacks within the rounds."""

    timeout_seconds: float = Field(1800.0, gt=0)
    """Wall-clock limit of one process, imports and warm-up included."""


class Stack(Frozen):
    """An ordered, named list of plugin uses; what it sets is already part of the scenario beside
    it."""

    name: str = Field(pattern=STACK_NAME)
    """Name in tables and folders."""

    uses: tuple[Use, ...] = ()
    """Plugin uses in the order in which their hooks are called."""

    settings: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work that this stack changes, by dotted key."""


class Work(Frozen):
    """What is trained, on what, with which settings: everything that all stacks share."""

    name: str = Field("unnamed", pattern=STACK_NAME)
    """Short name of the scenario."""

    description: str = ""
    """The question that the scenario answers, in a sentence."""

    task: Literal["causal-lm"] = "causal-lm"
    """What the model is trained to do."""

    mode: Literal["train"] = "train"
    """What is measured."""

    model: ModelUse = ModelUse()
    """Which model."""

    adapter: AdapterUse = AdapterUse()
    """What is trained on top of it."""

    data: DataUse = DataUse()
    """What it is trained on."""

    optimizer: OptimizerUse = OptimizerUse()
    """What updates its parameters."""

    engine: EngineUse = EngineUse()
    """What drives the steps."""

    parallel: ParallelUse = ParallelUse()
    """How devices share the work."""

    launcher: LauncherUse = LauncherUse()
    """What starts the processes."""

    metrics: Annotated[tuple[Use, ...], Field(strict=False)] = (Use(use="memory"),)
    """What is measured beside time, tokens and loss."""

    train: Train = Train()
    """Settings of training."""

    resources: Resources = Resources()
    """What a run may use."""

    measure: Measure = Measure()
    """How a run is measured."""

    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the worker, from an allow-list."""

    SLOTS: ClassVar[tuple[str, ...]] = (
        "model",
        "adapter",
        "data",
        "optimizer",
        "engine",
        "parallel",
        "launcher",
    )


class Scenario(Work):
    """A resolved work: sweep values and a stack's settings folded in, sizes and defaults worked
    out."""

    @property
    def world_size(self) -> int:
        """Number of processes, one per device."""
        return self.resources.devices * self.resources.nodes

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, raw: Any) -> Any:
        """Work out what follows from other settings: the batch sizes and the parallel plugin."""
        if not isinstance(raw, dict):
            return raw
        resources = raw.get("resources") or {}
        if not isinstance(resources, dict):
            return raw
        sizes = [resources.get(key, 1) for key in ("devices", "nodes")]
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            return raw
        world_size = sizes[0] * sizes[1]
        done = {**raw, "train": complete_batch(raw.get("train") or {}, world_size)}
        if world_size > 1 and "parallel" not in raw:
            done["parallel"] = "ddp"
        return done


class Exclusion(Frozen):
    """Points of the sweep that are not to be run, with the reason that the plan prints."""

    when: dict[str, JsonValue] = Field(min_length=1)
    """Dotted keys and the value, or list of values, that all of them must have; `stack` is a key
    too."""

    because: str = Field(min_length=1)
    """Why, in a sentence."""


class StackEntry(Frozen):
    """A stack as a file spells it out: the settings it changes and the plugins it uses."""

    set: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of the work that this stack changes, by dotted key."""

    use: tuple[Use, ...] = ()
    """Plugin uses in order."""

    description: str = ""
    """What the stack is, in a line."""


class ScenarioFile(Work):
    """One scenario file: the work, the stacks to compare on it, and what to sweep."""

    slow: bool = False
    """A slow scenario runs only when it is named, never as part of a folder."""

    stacks: dict[str, StackEntry] = Field(default_factory=lambda: {"baseline": StackEntry()})
    """Stacks by name: a list of uses, `{set: ..., use: [...]}`, or the name of a named stack."""

    baseline: str | None = None
    """The stack that the others are compared with; else the one called `baseline`, else the first.
    """

    sweep: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted keys and the values that each takes; all combinations are run."""

    zip: dict[str, tuple[JsonValue, ...]] = Field(default_factory=dict)
    """Dotted keys that move together: the first values of all, then the second values, ..."""

    exclude: tuple[Exclusion, ...] = ()
    """Points that are not to be run."""

    @field_validator("stacks")
    @classmethod
    def _some_stack(cls, stacks: dict[str, StackEntry]) -> dict[str, StackEntry]:
        """Refuse a comparison of nothing."""
        if not stacks:
            raise ValueError("at least one stack is needed; `baseline: []` is the plainest")
        return stacks

    def baseline_name(self) -> str:
        """The stack that `baseline` names, else the one called `baseline`, else the first."""
        if self.baseline is not None:
            return self.baseline
        return "baseline" if "baseline" in self.stacks else next(iter(self.stacks))


def file_schema() -> dict[str, Any]:
    """JSON schema of what a scenario file may hold, with what is spelt out only on reading."""
    schema = ScenarioFile.model_json_schema()
    properties = schema["properties"]
    file = {"type": "string"}
    properties["extends"] = {
        "description": "Files, or shipped scenarios, that this one changes.",
        "anyOf": [file, {"type": "array", "items": file}],
    }
    use = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["use"]}]}
    spelt_out = properties["stacks"]["additionalProperties"]
    properties["stacks"]["additionalProperties"] = {
        "anyOf": [{"type": "string"}, {"type": "array", "items": use}, spelt_out]
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def complete_batch(train: Any, world_size: int) -> Any:
    """Give the missing one of micro batch, accumulation and global batch.

    global_batch_size = micro_batch_size x gradient_accumulation x world_size; with one or none
    given the missing ones of the first two are 1. Raises ValueError when the numbers do not fit.
    """
    keys = ("micro_batch_size", "gradient_accumulation", "global_batch_size")
    if not isinstance(train, dict):
        return train
    given = {key: train[key] for key in keys if train.get(key) is not None}
    if not all(isinstance(value, int) and value > 0 for value in given.values()):
        return train
    micro, accumulation, total = (given.get(key) for key in keys)
    if total is not None and micro is None:
        accumulation = accumulation or 1
        micro = _share(total, accumulation * world_size, f"{accumulation} x {world_size} devices")
    elif total is not None and accumulation is None:
        assert micro is not None
        accumulation = _share(
            total, micro * world_size, f"micro batch {micro} x {world_size} devices"
        )
    micro, accumulation = micro or 1, accumulation or 1
    product = micro * accumulation * world_size
    if total is not None and total != product:
        raise ValueError(
            f"train.global_batch_size is {total}, but micro_batch_size {micro} x "
            f"gradient_accumulation {accumulation} x {world_size} devices = {product}; "
            "give two of the three"
        )
    sizes = dict(zip(keys, (micro, accumulation, product), strict=True))
    return {**train, **sizes}


def _share(total: int, parts: int, what: str) -> int:
    """Divide without remainder, or say what does not divide."""
    if total % parts:
        raise ValueError(f"train.global_batch_size {total} cannot be divided by {what} = {parts}")
    return total // parts
