"""Kinds of operations that profiles and ledgers share, by the names of operations and kernels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

SharedKind: TypeAlias = Literal["optimizer", "loss", "attention", "norm"]

PATTERNS: Mapping[SharedKind, str] = {
    "optimizer": r"_fused_(adam|sgd|adagrad)|Fused(Adam|Sgd|Adagrad)",
    "loss": r"cross_entropy|nll_?loss|log_?softmax|(mse|l1|kl_div)_?loss",
    "attention": r"attention|flash|fmha|sdpa|_fort_native_sdp|softmax",
    "norm": r"(layer|rms|group|batch)_?norm|RowwiseMoments",
}
"""Names by kind, in the order in which they are tried, whatever their case."""


@lru_cache(maxsize=4096)
def shared_kind(name: str) -> SharedKind | None:
    """Return the kind of an operation or kernel by its name; None for one of another kind."""
    known = (kind for kind, form in PATTERNS.items() if re.search(form, name, re.IGNORECASE))
    return next(known, None)
