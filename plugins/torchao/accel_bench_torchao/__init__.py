"""The plugin `torchao`: base weights stored in few bits under LoRA, or products in float8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from accel_bench import (
    Experiment,
    Machine,
    Metric,
    Options,
    Plugin,
    Run,
    Window,
    hookimpl,
    quantize_seconds,
    unquantizable,
)

if TYPE_CHECKING:
    from accel_bench_torchao.impl import QuantizedBase

FLOAT8_CAPABILITY = (8, 9)
"""Compute capability from which a GPU multiplies float8."""

BITS = {"int8": 8, "float8": 8, "nf4": 4}
"""Bits of a weight where they are not chosen."""

FOUR_BITS, SMALLEST_NEAR = 4, 7
"""Fewest bits of which the distance of updates was measured, and fewest that stay near."""

SMALLEST_INTX_GROUP = 32
"""Weights that share a scale in `intx`, and in `nf4` twice as many, where none is given."""


class TorchAOOptions(Options):
    """Storage of base weights, or the dtype of products; one of the two."""

    weights: Literal["int8", "intx", "float8", "nf4", "none"] | None = None
    """How the weights of the decoder's linear layers are stored: `int8` and `float8` with a scale
    for each output or group, `intx` as integers of `bits` bits with a scale for each group, `nf4`
    packed, two to a byte. Null is `int8`, or `none` with `float8_training`."""

    bits: int | None = Field(None, ge=2, le=8)
    """Bits of an `intx` weight, 4 where none is given. Each still takes a byte of memory. A single
    bit is no choice: torchao rounds such weights to zero, and no gradient passes."""

    group_size: int | None = Field(None, ge=8)
    """Inputs that share a scale; it must divide each layer's inputs. Null: all inputs of an output
    for `int8` and `float8`, 32 for `intx`, 64 weights for `nf4`."""

    float8_training: Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"] = "none"
    """torchao's recipe for products in float8, by its name; weights stay stored as they are."""

    emulate: bool = False
    """Compute what float8 training would give without a device that has float8: slower than
    without it, but the losses are those of the recipe."""

    @field_validator("weights", mode="before")
    @classmethod
    def _refuse_by_name(cls, value: Any) -> Any:
        """Reject torchao's other configurations, with the reason and what is supported."""
        if isinstance(value, str) and (problem := _unusable(value)):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> TorchAOOptions:
        """Reject options that have no effect together, or contradict one another."""
        trains = self.float8_training != "none"
        if trains and self.weights not in (None, "none"):
            raise ValueError(
                f"weights {self.weights!r} and float8_training {self.float8_training!r} exclude "
                "each other: float8 training rounds full weights at every step; choose one"
            )
        if not trains and self.weights == "none":
            raise ValueError("weights 'none' leaves nothing to do; set float8_training, or weights")
        for name, fits, where in (
            ("bits", self.base == "intx", "weights: intx"),
            ("group_size", self.base is not None, "quantized weights"),
            ("emulate", trains, "float8_training"),
        ):
            if name in self.model_fields_set and not fits and getattr(self, name):
                raise ValueError(f"{name} belongs to {where}")
        return self

    @property
    def base(self) -> str | None:
        """How base weights are stored, defaults applied; None as without this plugin."""
        if self.weights is None:
            return "int8" if self.float8_training == "none" else None
        return None if self.weights == "none" else self.weights

    @property
    def bits_of_base(self) -> int:
        """Bits that a base weight can differ in."""
        return BITS.get(self.base or "", self.bits or 4)

    @property
    def group_of_base(self) -> int | None:
        """Weights that share a scale; None means all inputs of an output."""
        usual = {"intx": SMALLEST_INTX_GROUP, "nf4": 2 * SMALLEST_INTX_GROUP}
        return self.group_size or usual.get(self.base or "")


class TorchAO(Plugin[TorchAOOptions]):
    """Loads a base model with weights in few bits, or has its products computed in float8."""

    Options = TorchAOOptions
    devices = frozenset({"cpu", "cuda"})

    # Quantized weights are frozen. `__init__` takes this back for float8 training.
    needs_adapter: ClassVar[bool] = True

    # Rounding to nearest and kernels without atomics: on a CPU the losses repeat bit for bit.
    deterministic: ClassVar[bool] = True

    # Over 30 steps of a small llama under LoRA the losses differed from those of plain weights by
    # 1e-4 (int8), 5e-4 (float8 weights, float8 training), 2.3e-3 (nf4, intx of 4 bits), 7e-3
    # (intx of 2 bits), and by 3e-4 where float8 trained all weights: 2 bits have a factor of 3.
    loss_tolerance: ClassVar[float | None] = 2e-2

    def __init__(self, options: TorchAOOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._base: QuantizedBase | None = None
        if options.base is None:
            # All weights may train in float8. The class still says yes, so that an adapter is
            # added where none is set; `adapter: none` in the scenario trains all.
            vars(self)["needs_adapter"] = False

    def allowed_update_difference(self) -> float | None:
        """Return by how much few bits may move weights otherwise.

        In a small llama under LoRA it was 0.16 (nf4, intx of 4 bits), 0.05 (float8) and 0.09
        (float8 training) on pretrained weights, 0.48, 0.23 and 0.20 on random ones. Of int8 it was
        0.02 to 0.09 in small models of ten tasks, the most in a T5, and 0.11 in `image-text`, whose
        `update_sensitivity` allows more.
        """
        if "float8" in (self.options.base or "float8"):
            return 0.3
        if self.options.bits_of_base >= SMALLEST_NEAR:
            return 0.2
        return 0.7 if self.options.bits_of_base >= FOUR_BITS else 1.5

    def allowed_output_difference(self) -> float | None:
        """Return the share of other tokens that few bits may bring; as bitsandbytes has it.

        In a small llama with random weights it was 0.03 for int8.
        """
        if self.options.base is None:
            return None
        return 0.12 if self.options.bits_of_base >= SMALLEST_NEAR else 0.4

    def claims(self) -> frozenset[str]:
        """Return the hook for loading where the base weights are quantized."""
        return frozenset({"load_model"} if self.options.base else ())

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes of a quantized weight."""
        return {"weights": 0.5 if self.options.base == "nf4" else 1.0} if self.options.base else {}

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield what float8 training lacks here, and what is quantized already."""
        scenario = experiment.scenario
        yield from unquantizable(scenario.model, self.name)
        if self.options.base is None and scenario.mode == "inference":
            yield "float8_training trains, and the mode is inference; use weights: float8"
        elif self.options.base is None:
            device = scenario.resources.device
            if not self.options.emulate:
                yield from _lacks_float8(device, machine, scenario.resources.devices)
                if device == "cuda" and "rowwise" in self.options.float8_training:
                    yield from _lacks_bfloat16(scenario.model.dtype, scenario.train.precision)
            if device == "cpu" and scenario.train.precision != "as-is":
                yield (
                    "torchao's float8 layers do not follow autocast on a CPU; "
                    "set model.dtype and `train.precision: as-is`"
                )

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import torchao, so that core can read the memory level in between."""
        from accel_bench_torchao import impl  # noqa: F401

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the scenario's model, each linear layer quantized as soon as it is loaded."""
        from accel_bench_torchao.impl import QuantizedBase

        self._base = base = QuantizedBase(self.options)
        run.on_evidence(lambda: base.evidence)
        return base.load(run)

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Convert the model's own linear layers to float8 training, in place."""
        if self.options.base is None:
            from accel_bench_torchao.impl import Float8Training

            training = Float8Training(self.options)
            run.on_close(training.undo)
            run.on_evidence(lambda: training.evidence)
            training.convert(run.model)
        elif self._base is not None:
            self._base.spare_replicas(run.model)

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> list[Metric]:
        """Return the seconds of quantizing while the model was loaded, outside of every step."""
        if self._base is None:
            return []
        return [quantize_seconds(self._base.seconds)]


def _unusable(name: str) -> str | None:
    """Return why a configuration of torchao's cannot train adapters; None if it can."""
    plain = "".join(letter for letter in name.lower() if letter.isalnum())
    if "activation" in plain or "dyn" in plain or "static" in plain:
        return (
            f"{name!r} quantizes activations too, and that cuts the gradient without a word (8 of "
            "28 LoRA matrices got one when it was tried); use a weight-only base: int8, intx, "
            "float8 or nf4"
        )
    if plain.startswith("int4"):
        return (
            f"{name!r}: torchao's packed int4 layers have no backward, on no device "
            "(aten::_weight_int4pack_mm has no derivative); use nf4, packed too, or `weights: "
            "intx` with bits: 4"
        )
    known = {"int8weightonly": "int8", "intxweightonly": "intx", "float8weightonly": "float8"}
    for spelling, ours in known.items():
        if plain.startswith(spelling):
            return f"{name!r} is called {ours!r} here"
    return None


def _lacks_float8(device: str, machine: Machine, count: int) -> Iterator[str]:
    """Yield the reasons why products in float8 cannot be computed on the device."""
    needed = ".".join(map(str, FLOAT8_CAPABILITY))
    way_out = "set `emulate: true` to see its losses without its speed"
    if device == "cpu":
        yield f"float8 training needs a GPU of compute capability {needed}; {way_out}"
    for gpu in machine.gpus[:count] if device == "cuda" else ():
        if gpu.compute_capability < FLOAT8_CAPABILITY:
            found = f"{gpu.name} has {'.'.join(map(str, gpu.compute_capability))}"
            yield f"float8 training needs compute capability {needed}, {found}; {way_out}"


def _lacks_bfloat16(dtype: str, precision: str) -> Iterator[str]:
    """Yield a reason unless products are in bfloat16, the only output of rowwise scaling."""
    if "bfloat16" not in (dtype, "bfloat16" if precision == "bf16-autocast" else ""):
        yield (
            f"float8_training rowwise computes in bfloat16, and model.dtype is {dtype}; set "
            "model.dtype: bfloat16, or use tensorwise"
        )
