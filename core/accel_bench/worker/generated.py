"""Keep what was generated: ids of the first requests, digests of the others."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from accel_bench.result import Answers

MOST_IDS = 65_536
"""Token ids of one rank that are kept as they are."""


def kept_answers(answers: Sequence[Sequence[int]]) -> Answers:
    """Return token ids of the first requests, as many as are kept, and digests of the others."""
    room, whole = MOST_IDS, 0
    for answer in answers:
        room -= len(answer)
        if room < 0:
            break
        whole += 1
    return Answers(
        tokens=tuple(tuple(answer) for answer in answers[:whole]),
        digests=tuple(map(digest_of, answers[whole:])),
    )


def digest_of(answer: Sequence[int]) -> str:
    """Return 16 hexadecimal digits that differ for other token ids."""
    return hashlib.sha256(",".join(map(str, answer)).encode()).hexdigest()[:16]
