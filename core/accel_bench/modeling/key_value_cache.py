"""The size of a key-value cache: measured from its tensors, and computed from the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from accel_bench.modeling.contract import text_config
from accel_bench.run_context import Run


@dataclass(frozen=True)
class CacheSize:
    """Measured and expected bytes of a key-value cache."""

    bytes: int
    """Bytes of all the cache's tensors."""

    expected: int | None
    """Expected bytes: 2 x key-value heads x head size x kept length x requests x bytes of a number,
    summed over layers; null if the configuration does not state all of these."""

    requests: int
    """Number of requests in the batch."""

    length: int
    """Tokens of each request: the prompt and all generated tokens but the last."""

    @property
    def problem(self) -> str:
        """Text on how the size differs from the expected size; empty if equal, or none expected."""
        if self.expected in (None, self.bytes):
            return ""
        return f"the cache holds {self.bytes:,} bytes, arithmetic says {self.expected:,}"

    @property
    def text(self) -> str:
        """Size of the cache as text, in a line."""
        said = "" if self.expected is None else ", as arithmetic says"
        what = self.problem or f"the key-value cache holds {self.bytes:,} bytes{said}"
        return f"{what}, for {self.requests} x {self.length} tokens"

    def document(self) -> dict[str, Any]:
        """Return the fields as JSON, with `exact`: true if the size is as expected."""
        return {**asdict(self), "exact": None if self.expected is None else not self.problem}


def cache_size(cache: Any, run: Run, requests: int) -> CacheSize | None:
    """Return the size of a key-value cache of transformers, or None if it cannot be read."""
    layers = getattr(cache, "layers", None)
    if not layers:
        return None
    kept = (getattr(layer, name, None) for layer in layers for name in ("keys", "values"))
    tensors = [tensor for tensor in kept if isinstance(tensor, torch.Tensor)]
    asked = run.scenario.inference
    length = asked.prompt_tokens + asked.new_tokens - 1
    return CacheSize(
        bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        expected=_expected(run, requests, length, tensors),
        requests=requests,
        length=length,
    )


def _expected(run: Run, requests: int, length: int, tensors: Sequence[torch.Tensor]) -> int | None:
    """Return the expected bytes of a key-value cache, or None if unknown.

    Under autocast, in which dtypes differ by operation, the dtype of the stored `tensors` counts.
    """
    config = text_config(getattr(run.unwrapped_model, "config", None))
    numbers = expected_numbers(config, length, run.scenario.inference.cache == "static")
    if numbers is None or not tensors:
        return None
    pair = sum(tensor.element_size() for tensor in tensors[:2])
    if not run.scenario.train.precision.endswith("-autocast"):
        dtype: torch.dtype = getattr(torch, run.scenario.compute_dtype)
        pair = 2 * dtype.itemsize
    return numbers * requests * pair


def expected_numbers(config: Any, length: int, static: bool) -> int | None:
    """Return the number of elements in the keys that all layers cache for `length` tokens.

    `static` is true for a cache of fixed size. Returns None if a layer stores anything but the keys
    and values of its last tokens, or if the configuration does not state the sizes.
    """
    heads, size = key_value_heads(config), head_size(config)
    kept = kept_lengths(config, length, static)
    return None if heads is None or size is None or kept is None else heads * size * sum(kept)


def key_value_heads(config: Any) -> int | None:
    """Return a layer's number of key-value heads; None if not stated, or with latent attention."""
    queries = getattr(config, "num_attention_heads", None)
    if queries is None or getattr(config, "kv_lora_rank", None):
        return None
    if getattr(config, "new_decoder_architecture", False):
        return int(queries)  # Falcon's repeats its keys and values before it keeps them.
    if getattr(config, "multi_query", False):
        return 1
    return int(getattr(config, "num_key_value_heads", None) or queries)


def head_size(config: Any) -> int | None:
    """Return the size of an attention head; None if the configuration does not state it."""
    if size := getattr(config, "head_dim", None):
        return int(size)
    width, heads = (getattr(config, name, None) for name in ("hidden_size", "num_attention_heads"))
    return int(width) // int(heads) if width and heads else None


def kept_lengths(config: Any, length: int, static: bool) -> list[int] | None:
    """Return how many of `length` tokens each layer stores, or None for unknown kinds of layers.

    A layer with an attention window of w tokens stores the last w - 1, a static cache all w.
    """
    window = getattr(config, "sliding_window", None)
    default = "full_attention" if window is None else "sliding_attention"
    layers = getattr(config, "num_hidden_layers", None)
    kinds = getattr(config, "layer_types", None) or [default] * (layers or 0)
    if not kinds or getattr(config, "attention_chunk_size", None) is not None:
        return None
    if getattr(config, "kv_sharing_modes", None) or getattr(config, "num_kv_shared_layers", None):
        return None
    slid = length if window is None else min(length, window if static else window - 1)
    known = {"full_attention": length, "sliding_attention": slid}
    return [known[kind] for kind in kinds] if known.keys() >= {*kinds} else None
