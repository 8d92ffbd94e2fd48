"""The size of a key-value cache: what its tensors hold, beside what arithmetic says."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from accel_bench.modeling.contract import text_config
from accel_bench.run_context import Run


@dataclass(frozen=True)
class CacheSize:
    """Bytes of keys and values, and what they should be."""

    bytes: int
    """Bytes of all tensors of the cache."""

    expected: int | None
    """2 x layers x heads of keys and values x size of a head x length x requests x bytes of a
    number; null where layers do not keep the whole length."""

    requests: int
    """Requests that were answered together."""

    length: int
    """Tokens of each: the prompt and all generated tokens but the last, which is never fed."""

    @property
    def problem(self) -> str:
        """What is wrong with it; empty where it is as expected, or nothing is known."""
        if self.expected in (None, self.bytes):
            return ""
        return f"the cache holds {self.bytes:,} bytes, arithmetic says {self.expected:,}"

    @property
    def text(self) -> str:
        """The size in a line."""
        said = "" if self.expected is None else ", as arithmetic says"
        what = self.problem or f"the key-value cache holds {self.bytes:,} bytes{said}"
        return f"{what}, for {self.requests} x {self.length} tokens"

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {**asdict(self), "exact": None if self.expected is None else not self.problem}


def cache_size(cache: Any, run: Run, requests: int) -> CacheSize | None:
    """Return the size of a cache of transformers; None where there is none that can be read."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return None
    kept = (getattr(layer, name, None) for layer in layers for name in ("keys", "values"))
    tensors = [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
    asked = run.scenario.inference
    length = asked.prompt_tokens + asked.new_tokens - 1
    return CacheSize(
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        expected=expected_bytes(run, requests, length),
        requests=requests,
        length=length,
    )


def expected_bytes(run: Run, requests: int, length: int) -> int | None:
    """Return the bytes of keys and values by the model's configuration.

    None for a model whose layers keep less than the whole length, or whose configuration does not
    say how many heads there are.
    """
    config = text_config(getattr(run.unwrapped_model, "config", None))
    known = all(hasattr(config, name) for name in ("num_hidden_layers", "num_attention_heads"))
    if not known or _slides(config, length):
        return None
    layers = config.num_hidden_layers
    queries = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or queries
    size = getattr(config, "head_dim", None) or config.hidden_size // queries
    dtype = getattr(torch, run.scenario.compute_dtype)
    return int(2 * layers * keys * size * length * requests * dtype.itemsize)


def _slides(config: Any, length: int) -> bool:
    """Return whether some layer attends to fewer tokens than there are."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ()
    other = any(kind != "full_attention" for kind in kinds)
    return other or (window is not None and not kinds and window <= length)
