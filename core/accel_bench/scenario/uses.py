"""Uses of plugins: a name with options, and the slots with the keys that core owns."""

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
"""A plural noun: what a task counts as tokens."""

TOKENS: Counts = "tokens"
"""What is counted where a task says nothing else."""

CALLS: Counts = "calls"
"""What is counted where nothing is trained: an operation is called on its own."""

Length: TypeAlias = Annotated[int, Field(ge=1, le=16_777_216)]
"""Tokens of a sample."""

NO_PLUGIN = "none"
"""The name that leaves a slot empty."""


class SlotDefaults(Frozen):
    """What `sample_configurations/defaults.yaml` holds: plugins where a scenario names none."""

    slots: dict[str, str]
    """The plugin of each slot."""

    metrics: tuple[str, ...]
    """What is measured beside time, tokens and loss."""

    gpu_metrics: tuple[str, ...]
    """What is measured beside `metrics` on a GPU."""

    several_devices: str
    """Fills `parallel` when there is more than one device."""

    needed_adapter: str
    """Fills `adapter` when a plugin needs one."""

    inference: dict[str, str]
    """Plugins in the place of those of `slots` in `mode: inference`."""

    family_data: dict[str, dict[str, JsonValue]]
    """What models of a family are trained on whose task does not learn from tokens, by the task."""


@cache
def slot_defaults() -> SlotDefaults:
    """Read the shipped file. Raises ScenarioError for a file that cannot be used."""
    document = load_file(presets_root() / "defaults.yaml")
    return validate(SlotDefaults, document.data, document.where, ScenarioError)


def _default_of(slot: str) -> Any:
    """Return a field that defaults to the slot's plugin, in the JSON schema too."""
    return Field(
        default_factory=lambda: slot_defaults().slots[slot],
        json_schema_extra=lambda schema: schema.update(default=slot_defaults().slots[slot]),
    )


class Use(Described):
    """One use of a plugin: its name and its options.

    Written as a bare name, or as a mapping with `use` and the plugin's options beside it. Keys that
    the slot does not own are the plugin's, and are validated by the plugin's own `Options` on
    activation. YAML's `use: null` means the plugin that is called `null`.
    """

    use: str = Field(min_length=1, max_length=200)
    """Name of the plugin, as `accel-bench plugins` lists it; `distribution:name` names one of
    several."""

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
        """Describe to editors what files may hold: a name, or a mapping with room for options."""
        written = handler.resolve_ref_schema(handler(schema))
        written["additionalProperties"] = True
        written.get("properties", {}).pop("options", None)
        return {"anyOf": [{"type": "string"}, written]}

    @classmethod
    def owned_keys(cls) -> frozenset[str]:
        """Return the keys that belong to the slot, so that no plugin may name an option so."""
        return frozenset(cls.model_fields) - {"options"}


class TaskUse(Use):
    """What the model is trained to do: which class of it is loaded, and by which loss."""

    use: str = _default_of("task")
    """Plugin of the task, such as `causal-lm`."""

    counts: Counts | None = None
    """What is counted as tokens, such as `images`: it follows from the plugin."""


class ModelUse(Use):
    """Which model, how its base weights come to be and how they are stored."""

    use: str = _default_of("model")
    """Plugin that loads the model."""

    id: str = "tiny-llama-cpu"
    """A name of the catalog (`accel-bench catalog models`), a local directory, or a hub id."""

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

    @property
    def bytes_per_value(self) -> int:
        """Bytes of a number in `dtype`."""
        return 4 if self.dtype == "float32" else 2


class AdapterUse(Use):
    """What is trained instead of the base weights; `none` trains all of them."""

    use: str = _default_of("adapter")
    """Plugin that adds the adapter, such as `lora`."""


class DataUse(Use):
    """What the model is trained on."""

    use: str = _default_of("data")
    """Plugin that brings the data, such as `synthetic` or `text`."""

    sequence_length: Length | Literal["auto"] = 512
    """Tokens in one sample, padding included; `auto`: the 95th percentile of the data's samples, at
    most what the model was made for, measured before round 1 for all stacks alike."""

    seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the order of samples, and of their content where it is made up."""

    held_out: (
        Annotated[int, Field(ge=0, le=1_000_000_000)] | Annotated[float, Field(gt=0, lt=1)]
    ) = 0
    """Samples that are never trained on, and that the model is evaluated on: their number, or their
    fraction of all. `data.seed` chooses them."""

    prefetch: int = Field(0, ge=0, le=10_000)
    """Micro-batches that a thread reads ahead, in their order; 0 reads each in its step."""


class SizedDataUse(DataUse):
    """Data whose sequence length is worked out."""

    sequence_length: Length = 512
    """Tokens in one sample, padding included."""


class OptimizerUse(Use):
    """What updates the parameters; its learning rate is `train.learning_rate`."""

    use: str = _default_of("optimizer")
    """Plugin that builds the optimizer: `adamw`, `adam`, `sgd`, `adafactor`, ...; `none` in
    `mode: inference`."""


class EngineUse(Use):
    """What drives the steps."""

    use: str = _default_of("engine")
    """Plugin that drives the steps: `torch` or `hf-trainer`; for requests `generate` (the default
    of `mode: inference`), `openai-endpoint` or `vllm`; for one operation `op`. `null` measures the
    harness."""


class ParallelUse(Use):
    """How several devices share the work."""

    use: str = _default_of("parallel")
    """Plugin that parallelizes, such as `ddp`, which is the default for more than one device;
    `none` in `mode: inference`."""


class LauncherUse(Use):
    """What starts the ranks."""

    use: str = _default_of("launcher")
    """Plugin that starts processes; `local` starts them on this machine."""
