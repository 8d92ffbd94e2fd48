"""Attention functions of queries, keys and values, whose outputs have the queries' shape."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def sdpa(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return causal attention of tensors of shape (batch, heads, tokens, width of a head)."""
    grouped = query.shape[-3] != key.shape[-3]
    return scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)


def flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the same causal attention as `sdpa`, computed by the flash kernel only."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa(query, key, value)


def flex(length: int, device: str) -> Callable[..., Any]:
    """Return a flex attention function with a causal block mask of sequences of `length` tokens.

    The function is compiled on a GPU: uncompiled, it materializes all scores.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(_is_causal, None, None, length, length, device=device)
    attend = flex_attention if device == "cpu" else torch.compile(flex_attention, dynamic=False)

    def flex_causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
            grouped = query.shape[1] != key.shape[1]
            return attend(query, key, value, block_mask=mask, enable_gqa=grouped)

    return flex_causal


def varlen(longest: int) -> Callable[..., Any]:
    """Return torch's attention function for packed sequences of at most `longest` tokens."""
    from torch.nn.attention.varlen import varlen_attn

    takes_groups = "enable_gqa" in signature(varlen_attn).parameters  # not before torch 2.12

    def varlen_causal(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor
    ) -> Any:
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and not takes_groups:
            key, value = (tensor.repeat_interleave(groups, dim=1) for tensor in (key, value))
        more = {"enable_gqa": groups > 1} if takes_groups else {}
        limits = starts, starts, longest, longest
        return varlen_attn(query, key, value, *limits, window_size=(-1, 0), **more)

    return varlen_causal


def one_by_one(lengths: Sequence[int]) -> Callable[..., Any]:
    """Return an attention function that computes each packed sequence in a call of its own."""
    sizes = list(lengths)

    def each_sequence(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        rows = zip(
            *(tensor.transpose(0, 1).split(sizes, 1) for tensor in (query, key, value)), strict=True
        )
        # Four dimensions, with which the kernels that are fused begin.
        outputs = [sdpa(q[None], k[None], v[None])[0] for q, k, v in rows]
        return torch.cat(outputs, 1).transpose(0, 1)

    return each_sequence


def _is_causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key
