"""Read the attention kernels that a forward pass used from the autograd graph that it left."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

FUSED = re.compile(r"attention|attn", re.IGNORECASE)
"""In the names of the nodes of all fused kernels: torch's, flash-attn's and flex attention's."""

UNFUSED = re.compile(r"(?<!log)softmax", re.IGNORECASE)
"""In the names of nodes where attention is made of products and a softmax; the loss has a log."""

ENDING = re.compile(r"Backward\d*$")
"""What autograd adds to an operation's name."""


def attention_kernels(output: Any) -> dict[str, int]:
    """Count the attention kernels in the autograd graph below a tensor, by name.

    `{"ScaledDotProductCudnnAttention": 32}`. Where there is no fused one, softmaxes are counted:
    `SafeSoftmax` is that of torch's math backend, `Softmax` that of eager attention or of a router.
    Empty where a compiler has hidden them, or where attention needs no gradient.
    """
    names = Counter(ENDING.sub("", node.name()) for node in _nodes(output.grad_fn))
    for kind in (FUSED, UNFUSED):
        if found := {name: count for name, count in names.items() if kind.search(name)}:
            return found
    return {}


def _nodes(first: Any) -> set[Any]:
    found, waiting = set(), [first]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return found
