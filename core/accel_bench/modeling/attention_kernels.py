"""The attention kernels of a forward pass, read from the autograd graph that it left."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

FUSED = re.compile(r"attention|attn", re.IGNORECASE)
"""Pattern in autograd node names of fused attention: torch's, flash-attn's, flex attention's."""

UNFUSED = re.compile(r"(?<!log)softmax", re.IGNORECASE)
"""Pattern in autograd node names of unfused attention: a softmax, but no loss's log-softmax."""

ENDING = re.compile(r"Backward\d*$")
"""Ending that autograd adds to an operation's name."""


def attention_kernels(output: Any) -> dict[str, int]:
    """Return the number of attention kernels in the autograd graph of a tensor, by name.

    An example is `{"ScaledDotProductCudnnAttention": 32}`. Without any fused kernel, softmaxes are
    counted: `SafeSoftmax` of torch's math backend, `Softmax` of eager attention or of a router. The
    result is empty if a compiler has hidden the kernels, or if attention needs no gradient.
    """
    names = Counter(ENDING.sub("", node.name()) for node in _nodes(output.grad_fn))
    for kind in (FUSED, UNFUSED):
        if matches := {name: count for name, count in names.items() if kind.search(name)}:
            return matches
    return {}


def _nodes(first: Any) -> set[Any]:
    nodes, waiting = set(), [first]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [following for following, _ in node.next_functions]
    return nodes
