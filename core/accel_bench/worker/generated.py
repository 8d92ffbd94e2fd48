"""Keep what was generated: ids of the first requests, digests of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from accel_bench.result import Answers, digest_of

MOST_IDS = 65_536
"""Token ids of one rank that are kept as they are."""


def kept_answers(
    answers: Sequence[Sequence[int]],
    unit: Literal["tokens", "letters"] = "tokens",
    near_ties: Sequence[Sequence[int]] | None = None,
) -> Answers:
    """Return token ids of the first requests, as many as are kept, with their near ties, and
    digests of the others."""
    room, whole = MOST_IDS, 0
    for answer in answers:
        room -= len(answer)
        if room < 0:
            break
        whole += 1
    return Answers(
        tokens=tuple(tuple(answer) for answer in answers[:whole]),
        digests=tuple(map(digest_of, answers[whole:])),
        unit=unit,
        near_ties=None if near_ties is None else tuple(map(tuple, near_ties[:whole])),
    )
