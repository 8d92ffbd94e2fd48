"""Uses of plugins (a name with options), and slots: roles such as `model` that one plugin fills."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, GetJsonSchemaHandler, model_serializer, model_validator
from pydantic_core import CoreSchema

from accel_bench.documents.base import Described, Frozen, JsonValue
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import presets_root
from accel_bench.documents.validate import validate
from accel_bench.errors import ScenarioError

DType = Literal["float32", "bfloat16", "float16"]

Counts: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,30}$")]
"""Plural noun for the elements that a task counts."""

TOKENS: Counts = "tokens"
"""Counted elements of a task that declares none."""

CALLS: Counts = "calls"
"""Counted elements if nothing is trained and one operation is called on its own."""

Length: TypeAlias = Annotated[int, Field(ge=1, le=16_777_216)]
"""Length of a sample in tokens."""

NO_PLUGIN = "none"
"""Plugin name that leaves a slot empty."""


class SlotDefaults(Frozen):
    """Default plugins of slots, the content of `sample_configurations/defaults.yaml`."""

    slots: dict[str, str]
    """The plugin of each slot."""

    metrics: tuple[str, ...]
    """Metrics plugins of every run."""

    gpu_metrics: tuple[str, ...]
    """Metrics plugins of a run on a GPU, beside `metrics`."""

    several_devices: str
    """Plugin of the slot `parallel` for more than one device."""

    needed_adapter: str
    """Plugin of the slot `adapter` if another plugin needs an adapter."""

    inference: dict[str, str]
    """Plugin of each slot in `mode: inference`, in place of `slots`."""

    family_data: dict[str, dict[str, JsonValue]]
    """Settings of the slot `data` by task, for tasks that the default data do not suit."""


@cache
def slot_defaults() -> SlotDefaults:
    """Return the shipped default plugins. Raises ScenarioError for an unusable file."""
    document = load_file(presets_root() / "defaults.yaml")
    return validate(SlotDefaults, document.data, document.where, ScenarioError)


def _default_of(slot: str) -> Any:
    """Return a pydantic field whose default, in its schema too, is the slot's default plugin."""
    return Field(
        default_factory=lambda: slot_defaults().slots[slot],
        json_schema_extra=lambda schema: schema.update(default=slot_defaults().slots[slot]),
    )


class Use(Described):
    """One use of a plugin: its name and its options.

    Written as a bare name, or as a mapping with `use` and the plugin's options beside it. Keys that
    the slot does not own are validated by the plugin's own `Options` on activation. YAML's `use:
    null` means the plugin that is called `null`.
    """

    use: str = Field(min_length=1, max_length=200)
    """Name of the plugin, as `accel-bench plugins` lists it; `distribution:name` if several have
    it."""

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
        if "use" not in raw and cls.model_fields["use"].is_required():
            return raw
        owned = {key: value for key, value in raw.items() if key in cls.model_fields}
        if "use" in raw and raw["use"] is None:
            owned["use"] = "null"
        rest = {key: value for key, value in raw.items() if key not in owned}
        if rest and not isinstance(owned.get("options", {}), dict):
            rest["options"] = owned.pop("options")
        if rest:
            owned["options"] = {**owned.get("options", {}), **rest}
        return owned

    @model_serializer(mode="wrap")
    def _beside_use(self, handler: Any) -> dict[str, Any]:
        plain = handler(self)
        options = plain.pop("options", {})  # none where only what was written is dumped
        return {**plain, **options}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the JSON schema of a use for editors: a name, or a mapping with options."""
        written = handler.resolve_ref_schema(handler(schema))
        written["additionalProperties"] = True
        written.get("properties", {}).pop("options", None)
        return {"anyOf": [{"type": "string"}, written]}

    @classmethod
    def owned_keys(cls) -> frozenset[str]:
        """Return the names of the slot's own fields, which no plugin may use for its options."""
        return frozenset(cls.model_fields) - {"options"}


class TaskUse(Use):
    """Objective of the training, which decides the class of the model and the loss."""

    use: str = _default_of("task")
    """Plugin of the task, such as `causal-lm`."""

    counts: Counts | None = None
    """Plural noun for the counted elements, such as `images`, which the plugin determines."""


class ModelUse(Use):
    """Model, with the origin and the storage of its base weights."""

    use: str = _default_of("model")
    """Plugin that loads the model."""

    id: str = "tiny-llama-cpu"
    """Name in the catalog (`accel-bench catalog models`), a local directory, or a hub id."""

    weights: Literal["random", "pretrained"] = "random"
    """Origin of the weights; `random` creates them on the device from the configuration and one
    seed, and downloads nothing."""

    dtype: DType = "float32"
    """Dtype in which base weights are stored; `train.precision` sets that of computation."""

    attention: Literal["sdpa", "eager", "flash_attention_2", "flex_attention"] = "sdpa"
    """Attention implementation, by transformers' names."""

    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    """Changes to the architecture's configuration, such as `num_hidden_layers: 4`."""

    revision: str | None = None
    """Revision of a hub model; required with `--trust-remote-code`."""

    @property
    def bytes_per_value(self) -> int:
        """Bytes of a number in `dtype`."""
        return 4 if self.dtype == "float32" else 2


class AdapterUse(Use):
    """Adapter that is trained in place of the base weights; `none` trains all weights."""

    use: str = _default_of("adapter")
    """Plugin that adds the adapter, such as `lora`."""


class DataUse(Use):
    """Training data."""

    use: str = _default_of("data")
    """Plugin that brings the data, such as `synthetic` or `text`."""

    sequence_length: Length | Literal["auto"] = 512
    """Tokens in one sample, padding included; `auto`: the 95th percentile of the data's samples, at
    most what the model was made for, measured before round 1 for all stacks alike."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of samples, and of the content of synthetic samples."""

    held_out: (
        Annotated[int, Field(ge=0, le=1_000_000_000)] | Annotated[float, Field(gt=0, lt=1)]
    ) = 0
    """Samples that are held out from training for evaluation: their number, or their fraction of
    all. `data.seed` chooses them."""

    prefetch: int = Field(0, ge=0, le=10_000)
    """Micro-batches that a thread reads ahead, in order; 0 reads each in its step."""


class SizedDataUse(DataUse):
    """Training data with a known sequence length."""

    sequence_length: Length = 512
    """Tokens in one sample, padding included."""


class OptimizerUse(Use):
    """Optimizer of the parameters; `train.learning_rate` sets its learning rate."""

    use: str = _default_of("optimizer")
    """Plugin that builds the optimizer: `adamw`, `adam`, `sgd`, `adafactor`, ...; `none` in
    `mode: inference`."""


class EngineUse(Use):
    """Engine that drives the steps."""

    use: str = _default_of("engine")
    """Plugin that drives the steps: `torch` or `hf-trainer`; for requests `generate` (the default
    of `mode: inference`), `openai-endpoint` or `vllm`; for one operation `op`. `null` measures the
    harness alone."""


class ParallelUse(Use):
    """Parallelism: how several devices share the work."""

    use: str = _default_of("parallel")
    """Plugin that parallelizes, such as `ddp`, which is the default for more than one device;
    `none` in `mode: inference`."""


class LauncherUse(Use):
    """Launcher of the ranks."""

    use: str = _default_of("launcher")
    """Plugin that starts processes; `local` starts them on this machine."""
