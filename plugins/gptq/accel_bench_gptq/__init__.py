"""The plugin `autogptq`: LoRA on base weights that GPTQ has quantized to a few bits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from accel_bench import (
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    architecture_of,
    hookimpl,
    quantize_seconds,
)
from accel_bench.errors import ScenarioError

TRAINING_BACKENDS = ("torch", "triton")
"""Kernels of GPTQModel that propagate gradients to the inputs in every mode."""

OTHER_BACKENDS: dict[str, str] = {
    **dict.fromkeys(
        ("bitblas", "exllama_v2", "machete", "marlin", "swordfish", "torch_int8"),
        "is for inference: no gradient passes through it",
    ),
    **dict.fromkeys(
        ("torch_aten", "torch_fused"),
        "changes for good to a kernel without a gradient when an evaluation comes before training",
    ),
}
"""Kernels of GPTQModel that cannot train, with reasons."""

ARCHIVED = (
    "AutoGPTQ is archived, and its package does not import beside current transformers; GPTQModel, "
    "which this plugin uses, is its successor: use backend: auto"
)

FUSED_EXPERTS = frozenset({"MixtralForCausalLM"})
"""Architectures whose experts are three-dimensional tensors, which only `pack` quantizes."""

WORKERS = "GPTQMODEL_CPU_WORKERS"
"""Environment variable of GPTQModel's number of threads, which is lowered on up to 2 cores."""

FEWEST_WORKERS = 2


class AutoGPTQOptions(Options):
    """Options of `autogptq`: quantization of the base weights, and the kernel that multiplies."""

    bits: Literal[2, 4, 8] = 4
    """Bits per weight."""

    group_size: Literal[-1, 32, 64, 128] = 128
    """Number of consecutive inputs that share a scale; -1 means all inputs of a layer."""

    desc_act: bool = False
    """Group inputs by decreasing activation instead of their order; `quantize: pack`, which has no
    activations, uses the norm of their weights."""

    sym: bool = True
    """Quantize symmetrically, with each group's range centred on zero."""

    backend: Literal["auto", "torch", "triton"] = "auto"
    """Kernel that unpacks weights; `auto` is `triton` on a GPU and `torch` on a CPU."""

    dequantize_in_backward: bool | None = None
    """Unpack weights again in the backward; false keeps every unpacked weight from the forward, at
    its unquantized size. Null: false with gradient checkpointing, which unpacks one block at a time
    anyway, and true without."""

    quantize: Literal["pack", "calibrate"] | None = None
    """Method of quantization. `pack`: round to nearest, block by block, while loading; `calibrate`:
    GPTQ on samples of the scenario's data, once, cached by content. Null: pack random weights,
    calibrate pretrained ones."""

    from_quantized: bool = False
    """True if `model.id` is a GPTQ checkpoint, a local directory or a hub id, with `weights:
    pretrained`."""

    calibration_samples: int = Field(128, gt=0)
    """Number of the scenario's first samples that `calibrate` uses, each truncated to
    `data.sequence_length`."""

    @field_validator("backend", mode="before")
    @classmethod
    def _a_backend_that_trains(cls, value: Any) -> Any:
        """Raise ValueError, with the reason, for a kernel that cannot train."""
        if value == "auto_gptq":
            raise ValueError(ARCHIVED)
        if isinstance(value, str) and (why := OTHER_BACKENDS.get(value.removeprefix("gptq_"))):
            raise ValueError(f"{value} {why}; kernels that train: {', '.join(TRAINING_BACKENDS)}")
        return value

    @model_validator(mode="after")
    def _quantized_once(self) -> AutoGPTQOptions:
        """Raise ValueError for quantization options if the checkpoint is quantized already."""
        if self.from_quantized and self.quantize is not None:
            raise ValueError(
                f"quantize: {self.quantize} is for weights that are not quantized yet; leave it "
                "out, or from_quantized"
            )
        return self


class AutoGPTQ(Plugin[AutoGPTQOptions]):
    """GPTQ-quantized base weights under an adapter, by GPTQModel's kernels that train."""

    Options = AutoGPTQOptions
    devices = frozenset({"cpu", "cuda"})
    dtypes = frozenset({"bfloat16", "float16"})
    needs_adapter = True
    deterministic: ClassVar[bool] = True
    restricted_model_archs: ClassVar[frozenset[str] | None] = frozenset(
        {
            "GPTBigCodeForCausalLM",
            "GemmaForCausalLM",
            "GraniteForCausalLM",
            "LlamaForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "OPTForCausalLM",
            "Phi3ForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
        }
    )

    # Over 13 steps of a small llama with random weights losses differed from unquantized ones by up
    # to 1.2e-3 in 4 bits, and the first loss by 4e-3 in 2 bits. This leaves a factor of five.
    loss_tolerance: ClassVar[float | None] = 2e-2

    def allowed_update_difference(self) -> float | None:
        """Return the allowed relative difference of the update; None, for 8 bits, is the usual one.

        In a small llama under LoRA quantization caused 0.11 (4 bits) and 0.43 (2 bits) on
        pretrained weights, 0.51 and 1.23 on random ones. With 8 bits, and groups of 32, of 128 and
        of all inputs, it was 0.05 to 0.08 in `sft-cpu` and 0.06 to 0.09 in `dpo-cpu` (5 seeds
        each). Core allows as much to all computation in 16 bits, and this plugin's models compute
        in 16 bits.
        """
        return {2: 1.5, 4: 0.7}.get(self.options.bits)

    def allowed_output_difference(self) -> float | None:
        """Return the fraction of generated tokens that quantization may change, never None."""
        return 0.12 if self.options.bits >= 8 else 0.4

    def claims(self) -> frozenset[str]:
        """Return the hook that only this plugin may implement in a run, `load_model`."""
        return frozenset({"load_model"})

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes of a packed weight, without its scale, under the key `weights`."""
        return {"weights": self.options.bits / 8}

    def way(self, run_weights: str) -> Literal["pack", "calibrate", "checkpoint"]:
        """Return the method of quantization, by the options and by `run_weights`.

        `run_weights` is the scenario's `model.weights`.
        """
        if self.options.from_quantized:
            return "checkpoint"
        return self.options.quantize or ("pack" if run_weights == "random" else "calibrate")

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the weights cannot be quantized on this machine.

        Raises ScenarioError if the model contradicts the options.
        """
        from accel_bench_gptq.checkpoint import is_moving, model_problem

        scenario = experiment.scenario
        if problem := model_problem(scenario, self.options):
            raise ScenarioError(f"{self.name}: {problem}")
        device = scenario.resources.device
        if self.options.backend == "triton" and device == "cpu":
            yield "backend triton needs a GPU; use backend: auto"
        elif device == "cuda" and self.options.backend != "torch" and find_spec("triton") is None:
            yield "backend triton needs the package triton; install it, or use backend: torch"
        architecture = architecture_of(scenario.model)
        way = self.way(scenario.model.weights)
        if way == "calibrate" and is_moving(scenario):
            raise ScenarioError(
                f"{self.name}: calibrated weights are kept for later runs, and "
                f"{scenario.model.id!r} may change; set model.revision"
            )
        if architecture in FUSED_EXPERTS and way != "pack":
            yield (
                f"the experts of {architecture} are kept as one tensor, which only `quantize: pack`"
                " knows"
            )

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Request untimed steps before the first round if the model must be calibrated."""
        if self.way(run.scenario.model.weights) == "calibrate":
            run.rehearsal = True

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import GPTQModel, and undo its changes of environment variables."""
        if WORKERS not in os.environ and (os.cpu_count() or 1) <= FEWEST_WORKERS:
            os.environ[WORKERS] = str(FEWEST_WORKERS)
            run.on_close(lambda: os.environ.pop(WORKERS, None))
        from accel_bench_gptq import loading

        loading.import_library()

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the model with packed weights, on the run's device, in train mode."""
        from accel_bench_gptq import loading

        way = self.way(run.scenario.model.weights)
        model, seconds, evidence = loading.load(run, self.options, way)
        run.on_evidence(lambda: evidence)
        if seconds is not None:  # Outside of steps, by this rank or once for all runs.
            scope: Literal["rank", "global"] = "global" if way == "calibrate" else "rank"
            run.on_metrics(lambda window: [quantize_seconds(seconds, scope, kind=way)])
        return model
