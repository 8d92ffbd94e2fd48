"""Batches that are read ahead: the same, in the same order, while the step computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest

from accel_bench import Batch, TokenCounts, hookimpl
from accel_bench.errors import HookError, ScenarioError
from accel_bench.plugin import Options, Plugin
from accel_bench.plugins.active import ActivePlugin
from accel_bench.testing import close_run, make_run, run_scenario
from accel_bench.worker.read_ahead import ReadAhead, read_ahead

COUNTS = TokenCounts(processed=4, real=4, supervised=3)


class Slow(Plugin[Options]):
    """A data plugin whose every batch takes a while."""


def plugin() -> ActivePlugin:
    """The plugin to which errors are attributed."""
    return ActivePlugin(Slow(Options(), "slow"), "slow", "data", "slow-data")


def numbered(number: int) -> Batch:
    """A batch that is told by its number."""
    return Batch({"number": number}, 1, COUNTS, 3)


def threads() -> list[threading.Thread]:
    """Threads that read ahead."""
    return [one for one in threading.enumerate() if one.name == "read-ahead"]


@pytest.mark.parametrize("ahead", [1, 3])
def test_batches_keep_their_order_and_no_more_are_read_than_asked_for(ahead: int) -> None:
    read: list[int] = []

    def source() -> Iterator[Batch]:
        for number in count():
            read.append(number)
            yield numbered(number)

    reader = ReadAhead(source(), ahead, plugin())
    assert read == []  # nothing before the first is asked for
    taken = [batch.inputs["number"] for batch in islice(reader, 5)]
    assert taken == [0, 1, 2, 3, 4]
    reader.close()
    # Those that are ready, and the one for which there is no room yet.
    assert len(read) <= len(taken) + ahead + 1
    assert threads() == []


def test_a_slow_source_is_read_while_the_step_computes() -> None:
    """While this thread does other work, the next batches become ready."""
    waiting = threading.Event()

    def source() -> Iterator[Batch]:
        for number in count():
            if number == 3:
                waiting.set()
            yield numbered(number)

    reader = ReadAhead(source(), 2, plugin())
    next(reader)
    assert waiting.wait(timeout=60)  # the fourth is being read, and only one was asked for
    reader.close()


def test_an_error_names_the_plugin_and_keeps_its_traceback() -> None:
    def broken_source() -> Iterator[Batch]:
        yield numbered(0)
        raise KeyError("column")

    reader = ReadAhead(broken_source(), 4, plugin())
    assert next(reader).inputs["number"] == 0
    with pytest.raises(
        HookError, match=r"plugin 'slow' \(slow-data\) failed in build_batches"
    ) as e:
        next(reader)
    cause = e.value.__cause__
    assert isinstance(cause, KeyError)
    frames = [frame.f_code.co_name for frame, _ in walk_tb(cause.__traceback__)]
    assert "broken_source" in frames
    reader.close()
    assert threads() == []


def test_what_is_said_of_the_scenario_stays_as_it_is() -> None:
    def source() -> Iterator[Batch]:
        raise ScenarioError("bring more data")
        yield

    reader = ReadAhead(source(), 1, plugin())
    with pytest.raises(ScenarioError, match="bring more data"):
        next(reader)
    reader.close()


def test_an_end_of_the_batches_is_an_end() -> None:
    reader = ReadAhead(iter([numbered(0), numbered(1)]), 5, plugin())
    assert [batch.inputs["number"] for batch in reader] == [0, 1]
    reader.close()


def test_the_run_ends_its_thread_and_reads_nothing_ahead_unless_asked(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"data": {"prefetch": 2}})
    run.batches = map(numbered, count())
    run.batches = read_ahead(run, plugin())
    assert next(run.batches).inputs["number"] == 0
    assert len(threads()) == 1
    close_run(run)
    assert threads() == []

    plain = make_run(tmp_path)
    plain.batches = iter([numbered(0)])
    assert read_ahead(plain, plugin()) is plain.batches


def test_losses_are_the_same_bit_by_bit_and_the_data_phase_is_shorter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch of a planted source takes 30 ms, less than a step of this model."""
    from accel_bench_huggingface import synthetic

    original = synthetic.Synthetic.build_batches

    class Planted(synthetic.Synthetic):
        """Synthetic tokens, each batch of which takes a while."""

        @hookimpl
        def build_batches(self, run: Any) -> Iterator[Batch]:
            """Yield the batches of `synthetic`, slowly."""
            for batch in original(self, run):
                time.sleep(0.03)
                yield batch

    monkeypatch.setattr(synthetic, "Synthetic", Planted)
    scenario = tmp_path / "slow.yaml"
    scenario.write_text(
        "model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 2}}\n"
        "data: {sequence_length: 128}\n"
        "train: {micro_batch_size: 4, gradient_accumulation: 2}\n"
        "resources: {device: cpu, threads: 1}\n"
        "stacks: {read: [], ahead: {set: {data.prefetch: 4}}}\n"
        "measure: {warmup: 1, steps: 4, phase_steps: 4, rounds: 1}\n"
    )
    found = run_scenario(scenario)
    losses, data = {}, {}
    for name, result in found.items():
        assert result.status.completed, result.reasons
        (rank,) = result.ranks
        assert rank.window is not None
        assert rank.phases is not None
        losses[name] = [sample.loss for sample in rank.window.samples]
        data[name] = rank.phases.seconds["data"]
    assert losses["ahead"] == losses["read"]
    assert data["ahead"] < 0.5 * data["read"]
    assert threads() == []
