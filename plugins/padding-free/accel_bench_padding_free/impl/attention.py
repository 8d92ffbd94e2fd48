"""Attention functions that separate the sequences of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from accel_bench import Run
from accel_bench.errors import PluginError
from accel_bench_padding_free.batches import Attention

Heads: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values, each of shape (1, heads, tokens, width of a head)."""

KERNEL_OPTIONS = frozenset({"scale", "window_size"})
"""Arguments that this plugin needs of torch's kernel, and that its first versions lack."""

TAKES_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""True if torch's kernel supports fewer key and value heads than query heads; 2.11 does not."""

LARGEST_HEAD = 256
"""Largest head dimension that torch's kernel supports."""

OLDEST_CAPABILITY = (8, 0)
"""Oldest CUDA compute capability that torch's kernel supports."""

UNKNOWN = ("position_bias", "s_aux", "softcap")
"""Arguments of attention functions that change the output and are not supported here."""

ROUTER_LOSS = "the loss of the model's router reads the mask that padding would need"
"""Reason, for messages, why a model with a router loss needs a mask."""


class SeparatedAttention:
    """Replacement of one of transformers' attention functions, until `undo` restores it."""

    def __init__(self, name: str, longest: int) -> None:
        """Replace transformers' attention function called `name`.

        `longest` is the largest number of tokens in a sequence.
        """
        self.name = name
        self.calls: dict[str, int] = {}
        self._before = ALL_ATTENTION_FUNCTIONS._local_mapping.get(name)
        make = by_flash_attention if name == "flash_attention_2" else by_torch
        ALL_ATTENTION_FUNCTIONS[name] = make(ALL_ATTENTION_FUNCTIONS[name], longest, self._count)

    def undo(self) -> None:
        """Restore the original attention function."""
        if self._before is None:
            ALL_ATTENTION_FUNCTIONS._local_mapping.pop(self.name, None)
        else:
            ALL_ATTENTION_FUNCTIONS[self.name] = self._before

    def _count(self, kernel: str) -> None:
        """Count a call of a kernel, except in compiled code, where a count causes recompilation."""
        if not torch.compiler.is_compiling():
            self.calls[kernel] = self.calls.get(kernel, 0) + 1


def for_rows(original: Any, attend: Callable[[nn.Module, Heads, torch.Tensor, Any], Any]) -> Any:
    """Return an attention function that calls `attend` for rows of several sequences.

    `attend(module, heads, starts, others)` gets the sequences' start indices, which transformers
    passes as `cu_seq_lens_q`, and no mask. Without start indices the function calls `original`,
    transformers' function.
    """

    def choose(  # noqa: PLR0913, PLR0917 - the signature is transformers'
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        cu_seq_lens_q: torch.Tensor | None = None,
        **others: Any,
    ) -> Any:
        if cu_seq_lens_q is None:
            return original(module, query, key, value, attention_mask, **others)
        return attend(module, (query, key, value), cu_seq_lens_q, others)

    return choose


def by_torch(original: Any, longest: int, count: Callable[[str], None]) -> Any:
    """Return an attention function that separates the sequences of a row, using torch alone.

    On a GPU it calls torch's kernel for packed sequences, on a CPU it computes them one by one.
    Sequences have at most `longest` tokens. `count` is called with the kernel's name. For batches
    without start indices it calls `original`, transformers' function.
    """

    def attend(
        _: nn.Module, heads: Heads, starts: torch.Tensor, others: Any
    ) -> tuple[torch.Tensor, None]:
        refuse_unknown(others)
        if heads[0].is_cuda:
            count("varlen_attn")
            return _on_gpu(heads, starts, longest_of(others, longest), others), None
        count("one by one")
        return one_by_one(heads, starts, others), None

    return for_rows(original, attend)


def by_flash_attention(original: Any, longest: int, count: Callable[[str], None]) -> Any:
    """Return an attention function that passes the start indices of sequences to flash-attn.

    Sequences have at most `longest` tokens. `count` is called with the kernel's name. `original` is
    transformers' function for flash-attn, which also computes batches without start indices.
    """

    def attend(module: nn.Module, heads: Heads, starts: torch.Tensor, others: Any) -> Any:
        count("flash_attn_varlen_func")
        most = longest_of(others, longest)
        told = {
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": most,
            "max_length_k": most,
        }
        return original(module, *heads, None, **{**others, **told})

    return for_rows(original, attend)


def longest_of(others: dict[str, Any], longest: int) -> int:
    """Return the largest number of tokens in a sequence, the limit that kernels are given.

    It is `longest`, or the batch's own limit `max_length_q` if that is larger. `others` are further
    arguments of the attention function.
    """
    return max(longest, int(others.get("max_length_q") or 0))


def refuse_unknown(others: dict[str, Any]) -> None:
    """Raise PluginError if attention by sequences would silently ignore an argument in `others`."""
    wrong = [name for name in UNKNOWN if others.get(name) is not None]
    if others.get("is_causal") is False:
        wrong.append("is_causal=False")
    if wrong:
        raise PluginError(
            f"padding-free: the model's attention asks for {', '.join(wrong)}, which attention by "
            "sequences does not have; use `attention: mask`"
        )


def _on_gpu(heads: Heads, starts: torch.Tensor, longest: int, others: Any) -> torch.Tensor:
    """Return the attention by torch's kernel, of shape (1, tokens, heads, width of a head).

    `starts` are the start indices of the sequences of at most `longest` tokens, and `others`
    further arguments of the attention function. Inputs are cast to one dtype, since autocast does
    not cast them for this kernel, and rotary embeddings may return float32.
    """
    autocast = torch.is_autocast_enabled("cuda")
    dtype = torch.get_autocast_dtype("cuda") if autocast else heads[0].dtype
    query, key, value = (tensor[0].transpose(0, 1).to(dtype) for tensor in heads)
    window = others.get("sliding_window")
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and not TAKES_GROUPS:
        key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
    output = varlen_attn(
        query,
        key,
        value,
        starts,
        starts,
        longest,
        longest,
        scale=others.get("scaling"),
        window_size=(-1 if window is None else window - 1, 0),
        **({"enable_gqa": groups > 1} if TAKES_GROUPS else {}),
    )
    assert isinstance(output, torch.Tensor)
    return output.unsqueeze(0)


@torch.compiler.disable
def one_by_one(heads: Heads, starts: torch.Tensor, others: Any) -> torch.Tensor:
    """Return the attention within each sequence, computed one after the other.

    `heads` have shape (1, heads, tokens, width), the result (1, tokens, heads, width). `starts` are
    the start indices of the sequences, and `others` further arguments of the attention function. No
    tensor of tokens x tokens is made. On a CPU, reading the start indices needs no waiting, but a
    compiler would recompile for each new start index.
    """
    sizes = starts.diff().tolist()
    grouped = heads[0].shape[1] != heads[1].shape[1]
    outputs = []
    for query, key, value in zip(*(tensor.split(sizes, dim=2) for tensor in heads), strict=True):
        mask = _band(query.shape[2], others.get("sliding_window"))
        output = scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=others.get("dropout", 0.0),
            is_causal=mask is None,
            scale=others.get("scaling"),
            enable_gqa=grouped,
        )
        outputs.append(output)
    return torch.cat(outputs, dim=2).transpose(1, 2).contiguous()


def _band(length: int, window: int | None) -> torch.Tensor | None:
    """Return the causal mask of a sliding window, of shape (length, length).

    Returns None if the window covers the whole sequence.
    """
    if window is None or window >= length:
        return None
    return torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)


def choose_attention(run: Run, wanted: str) -> tuple[Attention, str]:
    """Return the attention for this run's model and device, and why it is not the wanted one.

    `wanted` is the option `attention`. The second text is empty if the wanted attention is used.
    Raises PluginError if the wanted attention is unsupported.
    """
    asked = run.scenario.model.attention
    if asked == "flash_attention_2":
        if _adds_router_loss(run):
            raise PluginError(f"padding-free: {ROUTER_LOSS}; use model.attention sdpa")
        return "flash", ""
    if asked == "flex_attention":
        return "block-mask", ""
    if asked == "eager" or wanted == "mask":
        return "mask", "" if wanted == "mask" else "model.attention is eager"
    problem = not_by_sequences(run)
    if problem is None:
        return "varlen", ""
    if wanted == "varlen":
        raise PluginError(f"padding-free: attention: varlen is not possible here: {problem}")
    return "mask", problem


def not_by_sequences(run: Run) -> str | None:
    """Return why attention cannot compute each sequence alone here; None if it can."""
    config = getattr(run.model, "config", None)
    config = config.get_text_config() if config is not None else None
    if getattr(config, "attn_logit_softcapping", None):
        return "the model caps its attention scores"
    if _adds_router_loss(run):
        return ROUTER_LOSS
    return _not_on_gpu(run, config) if run.device.type == "cuda" else None


def _adds_router_loss(run: Run) -> bool:
    return bool(getattr(getattr(run.model, "config", None), "output_router_logits", False))


def _not_on_gpu(run: Run, config: Any) -> str | None:
    """Return the reason why torch's kernel cannot run this model on this GPU; None if it can.

    `config` is the text model's configuration.
    """
    dropout = max(getattr(config, name, 0.0) or 0.0 for name in ("attention_dropout", "attn_pdrop"))
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    capability = torch.cuda.get_device_capability(run.device.index)
    dtype = product_dtype(run)
    for reason, holds in {
        "torch's kernel has no dropout": dropout > 0,
        f"torch's kernel does not compute in {dtype}": dtype == torch.float32,
        f"torch's kernel takes no heads of size {size}": size > LARGEST_HEAD or size % 8 != 0,
        f"the GPU has compute capability {capability}": capability < OLDEST_CAPABILITY,
        "this torch was built without flash attention": (
            not torch.backends.cuda.is_flash_attention_available()
        ),
        "this torch's kernel lacks grouped queries, scale or windows": (
            not KERNEL_OPTIONS <= set(inspect.signature(varlen_attn).parameters)
        ),
    }.items():
        if holds:
            return reason
    return None


def product_dtype(run: Run) -> torch.dtype:
    """Return the dtype of the scenario's matrix products."""
    name = run.scenario.compute_dtype
    dtype: torch.dtype = getattr(torch, name)
    return dtype
