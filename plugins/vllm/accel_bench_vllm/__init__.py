"""The engine `vllm`: inference by vLLM, in the process of the rank."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from typing import Any

from pydantic import Field, field_validator

from accel_bench import (
    Engine,
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    hookimpl,
)

SET_BY_THE_SCENARIO = frozenset(
    {
        "data_parallel_size",
        "disable_log_stats",
        "dtype",
        "generation_config",
        "gpu_memory_utilization",
        "load_format",
        "max_model_len",
        "max_num_seqs",
        "model",
        "num_gpu_blocks_override",
        "pipeline_parallel_size",
        "revision",
        "seed",
        "skip_tokenizer_init",
        "tensor_parallel_size",
        "tokenizer",
        "trust_remote_code",
    }
)
"""Arguments of vLLM that the scenario or this plugin sets."""

WORD = re.compile(r"[A-Za-z0-9_-]+")
"""Pattern of a text argument, which excludes dotted names of code, paths and addresses."""


class VLLMOptions(Options):
    """Options of `vllm`, by the names of vLLM's own arguments."""

    enforce_eager: bool = False
    """True to disable compilation and CUDA graphs."""

    block_size: int | None = Field(None, ge=1, le=256)
    """Number of tokens per block of the paged cache; null is vLLM's default for the device."""

    kv_cache_dtype: str = Field("auto", pattern=r"^[a-z0-9_]+$")
    """Dtype of stored keys and values, such as `fp8`; `auto` is the model's dtype."""

    kv_cache_memory_bytes: int | None = Field(None, ge=1)
    """Bytes of the paged cache, which the engine allocates at its start as memory of the run; null
    provides for `inference.batch_size` requests."""

    enable_prefix_caching: bool = False
    """True to share blocks of equal prefixes between requests; prompts that repeat when the data
    ends would then not be computed again."""

    max_num_batched_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens per step; longer prompts are split. Null is vLLM's default."""

    extra: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Further arguments of vLLM's `EngineArgs`, such as `{attention_backend: FLASHINFER}`: numbers,
    or words that are no code, file or host."""

    @field_validator("extra")
    @classmethod
    def _check_extra(cls, extra: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments. Raises ValueError for arguments set elsewhere, and unsafe texts.

        A text is unsafe if it may name code, a file or a host: vLLM imports the class named by
        `worker_cls`, and a scenario may come from others.
        """
        if own := sorted(extra.keys() & {*SET_BY_THE_SCENARIO, *cls.model_fields}):
            raise ValueError(
                f"{', '.join(own)}: the scenario or an option of the engine decides that; leave it "
                "out of extra"
            )
        for name, value in extra.items():
            if isinstance(value, str) and not WORD.fullmatch(value):
                raise ValueError(
                    f"{name} is {value!r}: extra takes words of letters, digits, - and _, not "
                    "names of code, files or hosts; what needs them is a plugin of its own"
                )
        return extra


class VLLM(Plugin[VLLMOptions]):
    """Answers requests with vLLM's engine: paged cache, continuous batching, its own kernels.

    Weights equal those of other stacks: random ones are written to a folder once.
    """

    Options = VLLMOptions

    uses_torch = False  # Its model is no module that core could profile.
    tasks = frozenset({"causal-lm"})
    modes = frozenset({"inference"})
    devices = frozenset({"cpu", "cuda", "rocm"})

    def claims(self) -> frozenset[str]:
        """Return `load_model`, the hook that this engine answers in place of the slot `model`.

        That slot's plugin loads no model, since vLLM does.
        """
        return frozenset({"load_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterable[str]:
        """Yield missing requirements, and settings that vLLM does not support."""
        if importlib.util.find_spec("vllm") is None:
            yield (
                "vLLM is not installed: pip install 'accel-bench-vllm[cuda]', or [cpu], into an "
                "environment of its own, since it pins torch and transformers"
            )
        scenario = experiment.scenario
        asked = scenario.inference
        if asked.cache != "dynamic" or asked.assistant is not None:
            yield "the cache and a draft model are vLLM's own: leave them out of `inference`"
        if scenario.adapter.use != "none":
            yield "vLLM serves the model without an adapter: set adapter: none"
        if scenario.train.precision.endswith("-autocast"):
            yield "vLLM computes in the model's dtype: set model.dtype, not train.precision"
        if scenario.world_size > 1:
            yield "vLLM answers on one device here: leave resources.devices out"

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Write the weights for vLLM to the cache once, before all rounds."""
        from .impl import checkpoint_of

        checkpoint_of(run)

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Keep vLLM in this process, whose memory and threads are measured; disable its telemetry,
        and let it use accel-bench's cache folder."""
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_NO_USAGE_STATS"] = "1"
        os.environ.setdefault("VLLM_CACHE_ROOT", str(run.cache_folder / "vllm"))
        import vllm  # noqa: F401

    @hookimpl
    def load_model(self, run: Run) -> Any:
        """Return the location of the weights, which `build_engine` loads."""
        from .impl import checkpoint_of

        return checkpoint_of(run)

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the engine, which loads the model and allocates its cache."""
        from .impl import VLLMEngine

        engine = VLLMEngine(run, self.options)
        run.on_close(engine.close)
        run.on_evidence(engine.evidence)
        run.on_metrics(engine.metrics)
        return engine
