"""The plugin `lora` for a scenario's `adapter`: PEFT's low-rank adapters on a frozen base model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from accel_bench import Options, Plugin, Run, hookimpl


class LoraOptions(Options):
    """Options of `lora`, in PEFT's terms."""

    r: int = Field(16, gt=0, le=1_000_000)
    """Rank of the adapters."""

    alpha: float = Field(16, gt=0)
    """Scale: the adapters' output is multiplied by alpha / r."""

    dropout: float = Field(0.0, ge=0, lt=1)
    """Probability with which an input of the adapters is set to zero."""

    target_modules: tuple[str, ...] | Literal["all-linear"] | None = None
    """Names of the modules to adapt, such as `q_proj`, in a list or in one text with spaces;
    `all-linear` for every linear module but the output layer; null for PEFT's choice for the
    architecture, and `all-linear` if it has none."""

    autocast_adapter_dtype: bool = True
    """True to keep the adapters in float32 on a base in half precision, as PEFT does."""

    @field_validator("target_modules", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Return module names as a tuple, from a list or from a text with spaces."""
        if isinstance(value, str) and value != "all-linear":
            return tuple(value.split())
        return tuple(value) if isinstance(value, list) else value  # strict, as of JSON


class Lora(Plugin[LoraOptions]):
    """Freezes the base model and trains low-rank adapters, without biases."""

    Options = LoraOptions

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import PEFT here, so that its memory is counted as memory of imports."""
        from accel_bench_huggingface import lora_impl

        lora_impl.import_what_adapting_imports()

    @hookimpl
    def add_adapter(self, run: Run) -> Any:
        """Return the run's model, with its base frozen and adapters added."""
        from accel_bench_huggingface import lora_impl

        model = lora_impl.add_adapter(run.model, self.options, run.scenario.train.seed)
        adapted = {"r": self.options.r, **lora_impl.lora_evidence(model)}
        run.on_evidence(lambda: adapted)
        return model
