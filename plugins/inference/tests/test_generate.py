"""The engine `generate`: tokens as in transformers, and latencies of a planted sleep."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_huggingface.synthetic import SyntheticOptions
from accel_bench_huggingface.synthetic_impl import make_up
from accel_bench_inference.generate_impl import GenerateEngine

from accel_bench import Batch, Run, Status, testing
from accel_bench.analysis.aggregate import collect_experiments
from accel_bench.analysis.metrics.plugin_metrics import named_metrics
from accel_bench.errors import ScenarioError
from accel_bench.modeling.loading import load_base_model
from accel_bench.modeling.near_ties import find_near_ties
from accel_bench.result import Result, Sample, Window

MakeRun = Callable[..., Run]

PLANTED_SECONDS = 0.02
"""Planted sleep in seconds of each call of the model."""

MODEL = {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2, "hidden_size": 64}}
MEASURE: dict[str, Any] = {}
LENGTHS = {"median": 6, "minimum": 3, "sigma": 0.4}
"""Prompt lengths, which differ so that batches are padded."""

LAYERS, HEADS, HEAD_SIZE, BYTES = 2, 2, 16, 4
"""Numbers of layers and key-value heads of the model, head size, and bytes of an element."""


class Laps:
    """A stopwatch that records laps, and excluded time."""

    def __init__(self, steps: int) -> None:
        self.running = True
        self.samples: list[Sample] = []
        self.left_out = 0
        self._steps = steps

    def resume(self) -> None:
        self.left_out += 1

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        (batch,) = batches
        counts = batch.tokens
        self.samples.append(
            Sample(
                step=len(self.samples),
                seconds=1.0,
                sequences=batch.sequences,
                processed_tokens=counts.processed,
                real_tokens=counts.real,
                supervised_tokens=counts.supervised,
                loss=0.0,
            )
        )
        self.running = len(self.samples) < self._steps


def prompts(run: Run, rows: int = 12) -> Iterator[Batch]:
    """Batches of padded prompts, as the data's plugin makes them."""
    from accel_bench.modeling.data.token_batches import batches_of

    options = SyntheticOptions.model_validate(
        {"vocab_size": 64, "samples": rows, "lengths": LENGTHS, "padding": "longest"}
    )
    run.dataset = make_up(options, run.scenario.data.sequence_length, 0)
    return batches_of(run, "longest")


def answering(
    make_run: MakeRun,
    model: dict[str, Any] = MODEL,
    measure: dict[str, Any] = MEASURE,
    **inference: Any,
) -> tuple[Run, GenerateEngine]:
    """Return a run of the tiny model with its engine."""
    asked = {"batch_size": 3, "prompt_tokens": 8, "new_tokens": 5, **inference}
    work = {"mode": "inference", "model": model, "inference": asked, "measure": measure}
    run = make_run(**work, resources={"device": "cpu"})
    run.model = run.unwrapped_model = load_base_model(run)
    run.batches = prompts(run)
    return run, GenerateEngine(run)


def by_transformers(run: Run, requests: int) -> list[list[int]]:
    """Return transformers' generation for each request alone, without padding."""
    from accel_bench.modeling.prompts import Prompts

    model, new = run.model, run.scenario.inference.new_tokens
    found = []
    for prompt in Prompts(prompts(run)).take(requests):
        ids = prompt[None]
        for _ in range(new):
            with torch.no_grad():
                token = model(input_ids=ids, use_cache=False).logits[:, -1].argmax(-1)
            ids = torch.cat([ids, token[:, None]], dim=1)
        found.append(ids[0, len(prompt) :].tolist())
    return found


def planted(run: Run) -> None:
    """Make each call of the model sleep."""
    run.model.register_forward_pre_hook(lambda *_: time.sleep(PLANTED_SECONDS))


def metrics_of(engine: GenerateEngine, laps: Laps) -> dict[str, float]:
    window = Window(started=0.0, ended=float(len(laps.samples)), samples=tuple(laps.samples))
    return {one.name: one.value for one in engine.metrics(window) if one.value is not None}


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_a_padded_batch_is_answered_as_each_prompt_alone_token_by_token(
    make_run: MakeRun, cache: str
) -> None:
    run, engine = answering(make_run, cache=cache)
    engine.run(Laps(2))
    assert run.answers == by_transformers(run, 6)
    assert len({len(answer) for answer in run.answers}) == 1


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_cache_holds_what_arithmetic_says(make_run: MakeRun, cache: str) -> None:
    _, engine = answering(make_run, cache=cache)
    laps = Laps(1)
    engine.run(laps)
    length = 8 + 5 - 1
    expected = 2 * LAYERS * HEADS * HEAD_SIZE * length * 3 * BYTES
    assert metrics_of(engine, laps)["kv_cache_bytes"] == expected
    shown = engine.evidence()["kv_cache"]
    assert (shown["bytes"], shown["expected"], shown["exact"]) == (expected, expected, True)


HALF: dict[str, Any] = {"model": {**MODEL, "dtype": "bfloat16"}}


def test_rounding_turns_near_ties_round_and_no_other_token(make_run: MakeRun) -> None:
    rounded, half = answering(make_run, new_tokens=24, **HALF)
    exact, whole = answering(make_run, new_tokens=24)
    half.run(Laps(4))
    whole.run(Laps(4))
    passes = iter(range(100))
    near_ties = find_near_ties(rounded, lambda: next(passes))
    assert near_ties is not None and len(near_ties) == 12
    assert next(passes) == 12  # Each pass shows that the run does not hang.
    others = [
        (next(n for n in range(24) if one[n] != other[n]), ties)
        for one, other, ties in zip(rounded.answers, exact.answers, near_ties, strict=True)
        if one != other
    ]
    assert others, "rounding has changed no token"
    assert all(place in ties for place, ties in others)
    assert sum(map(len, near_ties)) < 12 * 24 / 2


def test_answers_stand_where_memory_runs_out_while_near_ties_are_looked_for(
    make_run: MakeRun, caplog: pytest.LogCaptureFixture
) -> None:
    run, engine = answering(make_run, **HALF)
    passes = iter(range(100))

    def forward(model: Any, arguments: Any, inputs: dict[str, Any]) -> None:
        if not inputs.get("use_cache", True) and next(passes) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    run.unwrapped_model.register_forward_pre_hook(forward, with_kwargs=True)
    engine.run(Laps(2))
    assert len(run.answers) == 6
    near_ties = find_near_ties(run)
    assert near_ties is not None and len(near_ties) == 2
    assert "near ties are known of 2 of 6 requests: CUDA out of memory" in caplog.text


@pytest.mark.parametrize(("age", "known"), [(10.0, 3), (92.0, 1), (94.5, 1), (96.0, 0)])
def test_near_ties_are_looked_for_in_a_share_of_the_time_limit_and_in_what_is_left_of_it(
    make_run: MakeRun,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    age: float,
    known: int,
) -> None:
    run, engine = answering(make_run, measure={"timeout_seconds": 100.0}, **HALF)
    engine.run(Laps(2))
    now = [1000.0]

    def three_seconds_pass() -> None:
        now[0] += 3

    monkeypatch.setattr("accel_bench.modeling.near_ties.monotonic", lambda: now[0])
    monkeypatch.setattr(run.trace, "age", lambda: age)
    near_ties = find_near_ties(run, three_seconds_pass)
    assert near_ties is not None and len(near_ties) == known
    assert f"{known} of 6 requests: no more time for them is left" in caplog.text


def test_in_float32_near_ties_are_looked_for_where_timing_composes_batches(
    make_run: MakeRun,
) -> None:
    run, engine = answering(make_run)
    engine.run(Laps(1))
    assert find_near_ties(run) is None
    timed, engine = answering(make_run, rate=1000.0)
    engine.run(Laps(1))
    assert find_near_ties(timed) == [[]] * len(timed.answers)


def test_tokens_of_a_lap_are_those_that_went_through_and_those_generated(
    make_run: MakeRun,
) -> None:
    _, engine = answering(make_run)
    laps = Laps(1)
    engine.run(laps)
    assert laps.samples[0].sequences == 3
    assert laps.samples[0].processed_tokens == 3 * (8 + 5)
    assert laps.samples[0].real_tokens == 3 * 5


def test_a_planted_sleep_is_found_between_tokens_and_before_the_first(make_run: MakeRun) -> None:
    run, engine = answering(make_run)
    planted(run)
    laps = Laps(2)
    engine.run(laps)
    found = metrics_of(engine, laps)
    assert found["measured_inter_token_latencies"] == 2 * 3 * 4
    assert found["measured_requests"] == 6
    planted_ms = 1000 * PLANTED_SECONDS
    for name, sleeps in (("inter_token_latency", 1), ("time_to_first_token", 1)):
        assert sleeps * planted_ms <= found[f"{name}_p50"] <= found[f"{name}_p90"]
        assert found[f"{name}_p90"] <= found[f"{name}_p99"]
    assert found["request_latency_p50"] >= 5 * planted_ms
    assert found["decode_tokens_per_second"] <= 3 / PLANTED_SECONDS


def test_requests_that_arrive_faster_than_they_are_answered_wait_longer_and_longer(
    make_run: MakeRun,
) -> None:
    run, engine = answering(make_run, rate=1000.0, batch_size=2)
    planted(run)
    laps = Laps(6)
    engine.run(laps)
    found = metrics_of(engine, laps)
    shown = engine.evidence()
    assert shown["load"]["saturated"] is True
    assert "the queue grows" in shown["summary"]
    assert found["requests_per_second"] < 100
    # Of six batches, the last waits for the five before it.
    assert found["queueing_p99"] >= 4 * 5 * 1000 * PLANTED_SECONDS
    assert found["request_latency_p99"] >= found["queueing_p99"] + 5 * 1000 * PLANTED_SECONDS


def test_requests_that_arrive_slowly_are_awaited_outside_of_the_steps(make_run: MakeRun) -> None:
    _, engine = answering(make_run, rate=5.0, batch_size=4)
    laps = Laps(3)
    engine.run(laps)
    found = metrics_of(engine, laps)
    assert laps.left_out >= 1
    assert found["busy"] < 0.98
    assert engine.evidence()["load"]["saturated"] is False
    assert sum(sample.sequences for sample in laps.samples) < 3 * 4


def test_an_assistant_drafts_and_changes_no_token(make_run: MakeRun) -> None:
    alone, plain = answering(make_run, batch_size=1)
    drafted, engine = answering(make_run, batch_size=1, assistant="tiny-llama-cpu")
    plain.run(Laps(2))
    engine.run(Laps(2))
    assert drafted.answers == alone.answers


def test_an_assistant_of_another_vocabulary_is_refused(make_run: MakeRun) -> None:
    with pytest.raises(ScenarioError, match="has a vocabulary of 50257 tokens"):
        answering(make_run, batch_size=1, assistant="gpt2")


def test_sampling_draws_the_same_tokens_again(make_run: MakeRun) -> None:
    first, engine = answering(make_run, decoding="sampling", seed=3)
    second, again = answering(make_run, decoding="sampling", seed=3)
    engine.run(Laps(2))
    again.run(Laps(2))
    assert first.answers == second.answers
    assert first.answers != by_transformers(first, 6)


SCENARIO = """
mode: inference
model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}
data: {samples: 64}
inference: {batch_size: 2, prompt_tokens: 8, new_tokens: 4}
stacks:
  baseline: []
  static: {set: {inference.cache: static}}
  checkpointing: [activation-checkpointing]
measure: {warmup: 1, steps: 3, rounds: 1, phase_steps: 0}
"""


of_the_box = pytest.mark.box  # the scenario names activation checkpointing


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    path = tmp_path_factory.mktemp("inference") / "inference.yaml"
    path.write_text(SCENARIO)
    return testing.run_scenario(Path(path))


@of_the_box
def test_a_run_keeps_what_was_effective_and_what_was_answered(results: dict[str, Result]) -> None:
    for name in ("baseline", "static"):
        (rank,) = results[name].ranks
        assert results[name].status.value in ("ok", "degraded"), results[name].reasons
        assert rank.effective.training is False
        assert rank.effective.use_cache is True
        assert rank.effective.optimizer is None
        assert rank.update is None
        assert rank.answers is not None and len(rank.answers.tokens) >= 2 * 4
    assert results["baseline"].ranks[0].answers == results["static"].ranks[0].answers


@of_the_box
def test_what_only_trains_is_refused_with_its_reason(results: dict[str, Result]) -> None:
    assert results["checkpointing"].status.value == "skipped"
    (reason,) = results["checkpointing"].reasons
    assert reason.endswith("does not work with mode inference; it works with train")


def test_compiled_blocks_answer_the_same_and_compile_nothing_in_the_window(
    tmp_path: Path,
) -> None:
    pytest.importorskip("accel_bench_compile")
    path = tmp_path / "compiled.yaml"
    stacks = "stacks: {baseline: [], compiled: [{use: torch-compile, backend: eager}]}\n"
    lines = [line for line in SCENARIO.splitlines() if not line.startswith(("stacks", "  "))]
    path.write_text("\n".join([*lines, stacks]).replace("new_tokens: 4", "cache: static"))
    found = testing.run_scenario(path, settings={"inference.new_tokens": 4})
    (plain,), (rank,) = found["baseline"].ranks, found["compiled"].ranks
    assert found["compiled"].status is Status.OK, found["compiled"].reasons
    assert rank.answers == plain.answers
    assert rank.evidence["torch-compile"]["compiled_modules"] == 1
    assert rank.window is not None and not rank.window.instabilities


@of_the_box
def test_latencies_and_the_cache_are_figures_of_tables(results: dict[str, Result]) -> None:
    names = ("time_to_first_token_p50", "inter_token_latency_p99", "kv_cache_bytes")
    for row in collect_experiments([results["baseline"], results["static"]]):
        found = {one.name: one.by_round for one in named_metrics(list(row.completed.values()))}
        assert [min(found[name].values()) > 0 for name in names] == [True] * 3
