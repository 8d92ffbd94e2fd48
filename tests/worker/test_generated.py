"""What a run has generated is kept, with near ties where its engine kept the prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel_bench import Batch, Options, Plugin, Run, TokenCounts, hookimpl
from accel_bench.errors import HookError
from accel_bench.modeling.prompts import Prompts
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.result import digest_of
from accel_bench.worker.generated import answers_of, own_prompts
from accel_bench.worker.heartbeat import Heartbeat


class Answering(Plugin[Options]):
    """An engine's plugin."""

    @hookimpl
    def build_engine(self, run: Run) -> None:
        """Build nothing."""


def active() -> ActivePlugins:
    """That plugin alone."""
    return ActivePlugins([ActivePlugin(Answering(Options(), "mine"), "mine", "engine", "acme")])


def test_an_engine_that_keeps_other_prompts_than_answers_is_named(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run(mode="inference")
    run.answers, run.prompts = [[1, 2], [3, 4]], [torch.tensor([5])]
    with pytest.raises(HookError) as caught:
        answers_of(run, active(), Heartbeat(tmp_path / "page"))
    assert (caught.value.plugin, caught.value.distribution) == ("mine", "acme")
    assert "1 prompts in run.prompts for 2 answers in run.answers" in str(caught.value)


def test_a_token_id_that_could_not_be_read_back_names_its_engine(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run = make_run(mode="inference")
    run.answers = [[1, 2], [3, 10**41]]
    with pytest.raises(HookError, match=r"'mine' \(acme\).*run\.answers\.1\.1 is an integer of"):
        answers_of(run, active(), Heartbeat(tmp_path / "page"))


def test_without_prompts_no_near_ties_are_looked_for(
    make_run: Callable[..., Run], tmp_path: Path
) -> None:
    run, page = make_run(mode="inference"), Heartbeat(tmp_path / "page")
    run.answers = [[1, 2], [3, 4]]
    kept = answers_of(run, active(), page)
    assert (kept.tokens, kept.near_ties, page.phase) == (((1, 2), (3, 4)), None, "start")


def batches_of(*rows: list[int], size: int) -> Iterator[Batch]:
    """Yield the rows in batches of a size, padded on the right with 0."""
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        width = max(map(len, some))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in some])
        mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in some])
        counts = TokenCounts(ids.numel(), ids.numel(), 0)
        yield Batch({"input_ids": ids, "attention_mask": mask}, len(some), counts, 0)


def prompts_of(make_run: Any, size: int, number: int = 0, **asked: Any) -> list[list[int]]:
    run = make_run(mode="inference", inference={"batch_size": size, **asked})
    run.round = number
    rows = [list(range(10 * n, 10 * n + length)) for n, length in enumerate((40, 3, 20, 30), 1)]
    taken = Prompts(own_prompts(batches_of(*rows, size=size), run)).take(4)
    assert run.first_prompt == digest_of(taken[0].tolist())
    return [one.tolist() for one in taken]


def test_prompts_of_a_round_begin_with_tokens_of_their_own_however_they_are_batched(
    make_run: Any,
) -> None:
    alone, together = prompts_of(make_run, 1), prompts_of(make_run, 4)
    assert alone == together
    assert [len(prompt) for prompt in alone] == [40, 3, 20, 30]
    assert alone[0][:8] != list(range(10, 18)) and alone[0][8:] == list(range(18, 50))
    assert {*alone[1]} <= {20, 21, 22}  # Padding is none of its tokens.
    others = prompts_of(make_run, 4, number=1), prompts_of(make_run, 4, seed=1)
    assert all(other[0][:8] != alone[0][:8] for other in others)
