"""Keep what was generated: ids of the first requests, digests of the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugins, refuse_unreadable
from accel_bench.result import Answers, digest_of
from accel_bench.run_context import Run
from accel_bench.worker.heartbeat import Heartbeat

MOST_IDS = 65_536
"""Token ids of one rank that are kept as they are."""


def answers_of(run: Run, active: ActivePlugins, heartbeat: Heartbeat) -> Answers:
    """Return what a run has generated, with its near ties where the engine kept the prompts.

    Raises HookError where the engine kept another number of prompts than of answers, and for ids
    that could not be read back.
    """
    near_ties = None
    engine = active.answers("build_engine")
    if engine is not None:
        refuse_unreadable(engine, "build_engine", run.answers, "run.answers")
    if engine is not None and run.prompts and len(run.prompts) != len(run.answers):
        raise HookError(
            engine.name,
            engine.distribution,
            "build_engine",
            f"its engine kept {len(run.prompts)} prompts in run.prompts for "
            f"{len(run.answers)} answers in run.answers; keep one for each answer, or none",
        )
    if run.prompts:
        from accel_bench.modeling.near_ties import find_near_ties

        heartbeat.phase = "near_ties"
        near_ties = find_near_ties(run, heartbeat.end_pass)
    return kept_answers(run.answers, run.answer_unit, near_ties)


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
