"""The plugin `torchao`: quantized base weights under LoRA, or float8 matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from accel_bench import (
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    hookimpl,
    quantize_seconds,
    unquantizable,
)

if TYPE_CHECKING:
    from accel_bench_torchao.impl import TorchAOBase

FLOAT8_CAPABILITY = (8, 9)
"""Lowest CUDA compute capability with float8 products."""

BITS = {"int8": 8, "float8": 8, "nf4": 4}
"""Bits per weight of the formats with a fixed number."""

FOUR_BITS, SMALLEST_NEAR = 4, 7
"""Least bits per weight with an update tolerance of 0.7, and with an update tolerance of 0.2."""

DEFAULT_INTX_GROUP = 32
"""Default number of weights that share a scale in `intx`; the default of `nf4` is twice as many."""


class TorchAOOptions(Options):
    """Options of `torchao`: storage of base weights, or dtype of products."""

    weights: Literal["int8", "intx", "float8", "nf4", "none"] | None = None
    """Storage of the decoder's linear weights: `int8` and `float8` with a scale for each output or
    group, `intx` as integers of `bits` bits with a scale for each group, `nf4` packed, two to a
    byte. Null is `int8`, or `none` with `float8_training`."""

    bits: int | None = Field(None, ge=2, le=8)
    """Bits per `intx` weight, by default 4; each is stored in a byte. A single bit is not offered:
    torchao rounds such weights to zero, without a gradient."""

    group_size: int | None = Field(None, ge=8)
    """Number of inputs that share a scale, a divisor of each layer's inputs. Null: all inputs of an
    output for `int8` and `float8`, 32 for `intx`, 64 weights for `nf4`."""

    float8_training: Literal["none", "tensorwise", "rowwise", "rowwise_with_gw_hp"] = "none"
    """Name of torchao's recipe for float8 products; stored weights are unchanged."""

    emulate: bool = False
    """Emulate float8 training on a device without float8: slower than plain training, but with the
    losses of the recipe."""

    @field_validator("weights", mode="before")
    @classmethod
    def _refuse_by_name(cls, value: Any) -> Any:
        """Raise ValueError for a refused configuration of torchao, with reason and alternatives."""
        if isinstance(value, str) and (problem := _unusable(value)):
            raise ValueError(problem)
        return value

    @model_validator(mode="after")
    def _fit_together(self) -> TorchAOOptions:
        """Raise ValueError for options that contradict one another or have no effect together."""
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
        """Storage of base weights, with defaults applied; None to leave them unquantized."""
        if self.weights is None:
            return "int8" if self.float8_training == "none" else None
        return None if self.weights == "none" else self.weights

    @property
    def bits_of_base(self) -> int:
        """Number of bits per base weight that carry information."""
        return BITS.get(self.base or "", self.bits or 4)

    @property
    def group_of_base(self) -> int | None:
        """Number of weights that share a scale; None if all weights of one output share a scale."""
        usual = {"intx": DEFAULT_INTX_GROUP, "nf4": 2 * DEFAULT_INTX_GROUP}
        return self.group_size or usual.get(self.base or "")


class TorchAO(Plugin[TorchAOOptions]):
    """Quantizes base weights on loading, or computes matrix products in float8."""

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
        self._base: TorchAOBase | None = None
        if options.base is None:
            # All weights may train in float8. The class still says yes, so that an adapter is
            # added where none is set; `adapter: none` in the scenario trains all.
            vars(self)["needs_adapter"] = False

    def allowed_update_difference(self) -> float | None:
        """Return the allowed relative difference of the update, by the precision of the weights.

        In a small llama under LoRA with pretrained weights the difference was 0.16 for nf4 and intx
        of 4 bits, 0.05 for float8 and 0.09 for float8 training; with random weights 0.48, 0.23 and
        0.20. For int8 it was 0.02 to 0.09 in small models of ten tasks, the most in a T5, and 0.11
        in `image-text`, whose `update_sensitivity` allows more.
        """
        if "float8" in (self.options.base or "float8"):
            return 0.3
        if self.options.bits_of_base >= SMALLEST_NEAR:
            return 0.2
        return 0.7 if self.options.bits_of_base >= FOUR_BITS else 1.5

    def allowed_output_difference(self) -> float | None:
        """Return the fraction of generated tokens that may change; None without quantization.

        The fractions equal those of the plugin `bitsandbytes`. In a small llama with random weights
        int8 changed 0.03 of the tokens.
        """
        if self.options.base is None:
            return None
        return 0.12 if self.options.bits_of_base >= SMALLEST_NEAR else 0.4

    def claims(self) -> frozenset[str]:
        """Return `load_model`, the hook that no other plugin may implement, if this one
        quantizes."""
        return frozenset({"load_model"} if self.options.base else ())

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes per quantized weight, under the key `weights`; empty without any."""
        return {"weights": 0.5 if self.options.base == "nf4" else 1.0} if self.options.base else {}

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the machine or the scenario does not support the options."""
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
        """Import torchao here, so that its memory is counted as memory of imports."""
        from accel_bench_torchao import impl  # noqa: F401

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the scenario's model, with linear layers quantized while loading."""
        from accel_bench_torchao.impl import TorchAOBase

        self._base = base = TorchAOBase(self.options)
        run.on_evidence(lambda: base.evidence)
        run.on_metrics(lambda window: [quantize_seconds(base.seconds)])
        return base.load(run)

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Convert the model's own linear layers to float8 training in place."""
        if self.options.base is None:
            from accel_bench_torchao.impl import Float8Training

            training = Float8Training(self.options)
            run.on_close(training.undo)
            run.on_evidence(lambda: training.evidence)
            training.convert(run.model)
        elif self._base is not None:
            self._base.spare_replicas(run.model)


def _unusable(name: str) -> str | None:
    """Return the reason why torchao's configuration `name` is refused; None if it is not."""
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
    """Yield reasons why the first `count` devices of type `device` lack float8 products."""
    needed = ".".join(map(str, FLOAT8_CAPABILITY))
    way_out = "set `emulate: true` to see its losses without its speed"
    if device == "cpu":
        yield f"float8 training needs a GPU of compute capability {needed}; {way_out}"
    for gpu in machine.gpus[:count] if device == "cuda" else ():
        if gpu.compute_capability < FLOAT8_CAPABILITY:
            actual = f"{gpu.name} has {'.'.join(map(str, gpu.compute_capability))}"
            yield f"float8 training needs compute capability {needed}, {actual}; {way_out}"


def _lacks_bfloat16(dtype: str, precision: str) -> Iterator[str]:
    """Yield a reason unless products are in bfloat16, the only output dtype of rowwise scaling.

    `dtype` and `precision` are the scenario's `model.dtype` and `train.precision`.
    """
    if "bfloat16" not in (dtype, "bfloat16" if precision == "bf16-autocast" else ""):
        yield (
            f"float8_training rowwise computes in bfloat16, and model.dtype is {dtype}; set "
            "model.dtype: bfloat16, or use tensorwise"
        )
