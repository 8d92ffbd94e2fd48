"""What a run has generated is kept, with near ties where its engine kept the prompts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from accel_bench import Options, Plugin, Run, hookimpl
from accel_bench.errors import HookError
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.worker.generated import answers_of
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
