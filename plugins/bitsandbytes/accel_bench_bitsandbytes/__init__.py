"""The plugin `bitsandbytes`: 4-bit or 8-bit base weights under an adapter, 8-bit optimizers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

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
from accel_bench.errors import ScenarioError

CAST_LOGGER = "bitsandbytes.autograd._functions"
"""Logger of bitsandbytes' repeated message that int8 layers cast their inputs."""

OLDEST_FOR_INT8 = (7, 5)
"""Oldest CUDA compute capability with integer tensor cores."""


class BitsAndBytesOptions(Options):
    """Options of `bitsandbytes`, as bitsandbytes names them: storage of base weights, optimizer."""

    quant_type: Literal["nf4", "fp4", "int8", "none"] = "nf4"
    """Format of stored base weights; `none` keeps them unquantized."""

    double_quant: bool = False
    """Quantize the scales of the 4-bit blocks too, which saves about 0.4 bits a weight."""

    quant_storage: Literal["uint8", "bfloat16", "float16", "float32"] = "uint8"
    """Dtype into which 4-bit weights are packed. Sharding needs the dtype of the other weights."""

    compute_dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Dtype in which 4-bit weights are multiplied; null means the model's dtype."""

    llm_int8_threshold: float | None = Field(None, ge=0)
    """Magnitude from which inputs of int8 layers are outliers, multiplied unquantized; null means
    6, 0 disables outliers."""

    prepare: Literal["fast", "peft"] = "fast"
    """Preparation of the base. `fast`: freeze it and keep its dtypes. `peft`: call PEFT's
    `prepare_model_for_kbit_training`, which stores unquantized weights in float32."""

    optimizer: (
        Literal[
            "adamw_8bit",
            "paged_adamw_8bit",
            "paged_adamw_32bit",
            "lion_8bit",
            "paged_lion_8bit",
        ]
        | None
    ) = None
    """Optimizer in place of the scenario's; null keeps the scenario's."""

    @model_validator(mode="after")
    def _belong_together(self) -> BitsAndBytesOptions:
        """Raise ValueError for a combination of options in which one would have no effect."""
        four_bits = self.quant_type in ("nf4", "fp4")
        for field, wanted in (
            ("double_quant", self.double_quant),
            ("quant_storage", self.quant_storage != "uint8"),
            ("compute_dtype", self.compute_dtype is not None),
        ):
            if wanted and not four_bits:
                raise ValueError(
                    f"{field} is for quant_type nf4 and fp4, and quant_type is {self.quant_type}"
                )
        if self.llm_int8_threshold is not None and self.quant_type != "int8":
            raise ValueError(
                f"llm_int8_threshold is for quant_type int8, and quant_type is {self.quant_type}"
            )
        if self.quant_type == "none" and self.prepare != "fast":
            raise ValueError("prepare is for a quantized base, and quant_type is none")
        if self.quant_type == "none" and self.optimizer is None:
            raise ValueError("quant_type none without an optimizer does nothing; set optimizer")
        return self


class BitsAndBytes(Plugin[BitsAndBytesOptions]):
    """Quantize frozen base weights to 4 or 8 bits on loading; use 8-bit optimizers."""

    Options = BitsAndBytesOptions
    devices = frozenset({"cpu", "cuda"})
    needs_adapter: ClassVar[bool] = True

    # Rounding is deterministic and nothing is drawn: on a CPU two runs had equal losses, all types
    # and optimizers alike.
    deterministic: ClassVar[bool] = True

    # Over 30 steps of the small llama the losses differed from plain LoRA's by at most 1e-3 (nf4),
    # 1.6e-3 (fp4) and 2e-4 (int8), in float32 and bfloat16. This leaves a factor of twelve, for
    # weights that are not random.
    loss_tolerance: ClassVar[float | None] = 2e-2

    def __init__(self, options: BitsAndBytesOptions, name: str = "") -> None:
        super().__init__(options, name)
        if options.quant_type == "none":
            # Its optimizers train whole models as well. Core asks the instance before a run, and
            # the class only for what `--plugin` adds to a scenario that has no adapter.
            vars(self)["needs_adapter"] = False
        if options.optimizer is not None:
            vars(self)["other_optimizer"] = True

    def allowed_update_difference(self) -> float | None:
        """Return the allowed relative difference of the update; None means the usual limit.

        In a small llama under LoRA quantization caused 0.16 (nf4) and 0.20 (fp4) on pretrained
        weights, 0.48 and 0.56 on random ones. With int8 it was 0.02 to 0.09 in small models of ten
        tasks, the most in a T5, and 0.12 in `image-text`, whose `update_sensitivity` allows more.
        AdamW's 8-bit state alone moved weights by at most 0.0126 in 16 workloads, in an image
        classifier.
        """
        optimizer = 0.05 if "adamw_8bit" in (self.options.optimizer or "") else None
        return {"nf4": 0.7, "fp4": 0.7, "int8": 0.2}.get(self.options.quant_type, optimizer)

    def allowed_output_difference(self) -> float | None:
        """Return the fraction of generated tokens that may change; None without quantization.

        In a small llama with random weights, whose tokens are nearly equally likely, quantization
        changed 0.29 (nf4) and 0.06 (int8) of the tokens.
        """
        return {"nf4": 0.4, "fp4": 0.4, "int8": 0.12}.get(self.options.quant_type)

    def claims(self) -> frozenset[str]:
        """Return the names of the hooks that, with these options, no other plugin may implement."""
        quantizes = {"load_model"} if self.options.quant_type != "none" else set()
        return frozenset(quantizes | ({"build_optimizer"} if self.options.optimizer else set()))

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes of a quantized weight under the key `weights`; empty if not quantized.

        Optimizer state is left out, since it may be paged to the host.
        """
        packed = {"nf4": 0.5, "fp4": 0.5, "int8": 1.0}
        return {"weights": packed[kind]} if (kind := self.options.quant_type) in packed else {}

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the scenario or the machine does not support the options.

        Raises ScenarioError if the options and the scenario set contradictory optimizers.
        """
        scenario = experiment.scenario
        if self.options.quant_type != "none":
            yield from unquantizable(scenario.model, self.name)
        if self.options.optimizer is not None and scenario.mode == "inference":
            yield f"optimizer {self.options.optimizer} trains, and the mode is inference"
        elif self.options.optimizer is not None:
            optimizer_arguments(
                self.options.optimizer, scenario.optimizer.use, scenario.optimizer.options
            )
            if scenario.resources.device == "cpu" and self.options.optimizer.startswith("paged"):
                yield (
                    f"optimizer {self.options.optimizer} pages between a GPU and its host; on a "
                    f"CPU use {self.options.optimizer.removeprefix('paged_')}"
                )
        if self.options.quant_type == "int8" and scenario.resources.device == "cuda":
            for gpu in machine.gpus[: scenario.resources.devices]:
                if gpu.compute_capability < OLDEST_FOR_INT8:
                    yield f"int8 needs compute capability 7.5, {gpu.name} has less; use nf4"

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import bitsandbytes, and silence its log line for each int8 layer of each step."""
        from accel_bench_bitsandbytes import impl

        if self.options.quant_type == "int8":
            logger = logging.getLogger(CAST_LOGGER)
            run.on_close(functools.partial(logger.setLevel, logger.level))
            logger.setLevel(logging.ERROR)
        run.on_evidence(lambda: {"bitsandbytes": impl.library_version()})

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the frozen model, with quantized linear layers in its blocks."""
        from accel_bench_bitsandbytes.impl import BitsAndBytesBase

        base = BitsAndBytesBase(run, self.options)
        run.on_evidence(lambda: base.evidence)
        run.on_metrics(lambda window: [quantize_seconds(base.quantize_seconds)])
        return base.model

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return a bitsandbytes optimizer of the parameters that require a gradient."""
        from accel_bench_bitsandbytes.impl import build_optimizer, describe_optimizer

        assert self.options.optimizer is not None
        slot = run.scenario.optimizer
        optimizer = build_optimizer(
            self.options.optimizer,
            run.model.parameters(),
            run.scenario.train.learning_rate,
            optimizer_arguments(self.options.optimizer, slot.use, slot.options),
        )
        run.on_evidence(lambda: {"optimizer": describe_optimizer(optimizer)})
        return optimizer


def optimizer_arguments(name: str, use: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the scenario's optimizer options as arguments of the bitsandbytes optimizer `name`.

    `use` and `options` are the name and options of the scenario's optimizer plugin. Raises
    ScenarioError if `use` is not `adamw`, or if an option has no counterpart.
    """
    if use != "adamw":
        raise ScenarioError(
            f"bitsandbytes: optimizer {name} takes its settings from `optimizer: adamw`, and the "
            f"scenario's optimizer is {use}; set one of them"
        )
    names = {"weight_decay"} if "lion" in name else {"weight_decay", "betas", "eps"}
    for option, value in options.items():
        if option not in names and value not in (None, False):
            raise ScenarioError(
                f"bitsandbytes: optimizer {name} has no {option}, which the scenario's "
                f"optimizer.{option} sets; it takes {', '.join(sorted(names))}"
            )
    # Where the slot says nothing, torch's defaults of AdamW hold for weight decay, as in every
    # other stack; Lion's betas are its own.
    return {"weight_decay": 0.01, **{k: v for k, v in options.items() if k in names}}
