"""Prompts with random beginnings, and the generated answers to store: token ids or digests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from accel_bench.engine import Batch
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugins, refuse_unreadable
from accel_bench.result import Answers, digest_of
from accel_bench.run_context import Run
from accel_bench.worker.heartbeat import Heartbeat

MOST_IDS = 65_536
"""Largest number of token ids of one rank that are stored in full."""

OWN_TOKENS = 8
"""Number of tokens at the start of each prompt that are drawn at random."""


def own_prompts(batches: Iterator[Batch], run: Run) -> Iterator[Batch]:
    """Yield batches whose prompts begin with random tokens, which no server's cache holds.

    They are tokens of the prompt, chosen by `inference.seed`, the round, the rank and the request's
    position alone, so all stacks get the same prompts in a round.
    """
    import numpy as np

    drawn = np.random.default_rng((run.scenario.inference.seed, run.round, run.data_rank))
    for batch in batches:
        if "input_ids" not in batch.inputs:
            yield batch
            continue
        ids, mask = batch.inputs["input_ids"].clone(), batch.inputs.get("attention_mask")
        for number, row in enumerate(ids):
            places = np.arange(len(row)) if mask is None else mask[number].numpy().nonzero()[0]
            chosen = (drawn.random(OWN_TOKENS) * len(places)).astype(np.int64)
            own = places[:OWN_TOKENS]
            row[own] = row[places[chosen[: len(own)]]]
            run.first_prompt = run.first_prompt or digest_of(row[places].tolist())
        yield replace(batch, inputs={**batch.inputs, "input_ids": ids})


def answers_of(run: Run, active: ActivePlugins, heartbeat: Heartbeat) -> Answers:
    """Return the generated answers of a run; if the engine kept the prompts, also the near ties:
    the positions at which rounding alone may choose another token. Raises HookError if the engine
    kept another number of prompts than of answers, or token ids that could not be read back."""
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
    kept = stored_answers(run.answers, run.answer_unit, near_ties)
    return kept.model_copy(update={"first_prompt": run.first_prompt})


def stored_answers(
    answers: Sequence[Sequence[int]],
    unit: Literal["tokens", "letters"] = "tokens",
    near_ties: Sequence[Sequence[int]] | None = None,
) -> Answers:
    """Return answers to store: the first as token ids, MOST_IDS at most, the others as digests."""
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
