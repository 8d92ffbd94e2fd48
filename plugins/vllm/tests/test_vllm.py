"""vLLM's engine against transformers' `generate`: the same weights, the same tokens.

It needs an environment of its own, since vLLM pins torch and transformers: `make vllm`.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_vllm import VLLM, VLLMOptions

from accel_bench import Batch, Sample, TokenCounts, Window, testing
from accel_bench.analysis.checks.agreement import agreement
from accel_bench.analysis.checks.comparability import comparability
from accel_bench.result import Result

pytestmark = [
    pytest.mark.release,
    pytest.mark.filterwarnings("ignore"),  # vLLM looks at names that torch is about to remove.
]

vllm = pytest.importorskip("vllm", reason="vLLM is not installed: make vllm")

MODEL = {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2}}

NO_COUNTS: dict[str, Any] = {
    "sequences": 2,
    "processed_tokens": 26,
    "real_tokens": 10,
    "supervised_tokens": 0,
    "loss": 0.0,
}

PLANTED_SECONDS = 0.02
"""Planted sleep in seconds of each step of vLLM's model."""

SCENARIO = """
mode: inference
model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 2}}
data: {use: synthetic, samples: 64, lengths: {median: 12, minimum: 4, sigma: 0.4}}
inference: {batch_size: 3, prompt_tokens: 24, new_tokens: 12}
stacks:
  transformers: []
  vllm: {set: {engine: {use: vllm, enforce_eager: true}}}
measure: {warmup: 1, steps: 4, rounds: 1, phase_steps: 0}
"""


def measured(folder: Path, **settings: Any) -> dict[str, Result]:
    """Run both stacks in this process, without compilation."""
    path = folder / "served.yaml"
    path.write_text(SCENARIO)
    return testing.run_scenario(path, settings=settings)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return measured(tmp_path_factory.mktemp("served"))


def metrics_of(result: Result) -> dict[str, float]:
    return {one.name: one.value for one in result.ranks[0].metrics if one.value is not None}


def test_greedy_tokens_are_those_of_transformers(results: dict[str, Result]) -> None:
    for name in ("transformers", "vllm"):
        assert results[name].status.completed, results[name].reasons
    found = agreement(results["transformers"], results["vllm"])
    assert found is not None
    assert (found.requests, found.differing, found.compared) == (15, 0, 15 * 12)
    ours = results["transformers"].ranks[0].effective.weights_fingerprint
    theirs = results["vllm"].ranks[0].effective.weights_fingerprint
    assert ours is not None and theirs == ours
    assert comparability([results["transformers"]], [results["vllm"]]).refusal == ""


def test_the_cache_and_the_weights_are_what_arithmetic_says(results: dict[str, Result]) -> None:
    shown = results["vllm"].ranks[0].evidence["vllm"]["kv_cache"]
    layers, heads, size, number = 2, 2, 32, 4
    tokens = shown["blocks"] * shown["block_size"]
    assert shown["bytes"] == 2 * layers * heads * size * number * tokens == shown["expected"]
    assert metrics_of(results["vllm"])["kv_cache_bytes"] == shown["bytes"]
    assert tokens >= 3 * (24 + 12)


class Laps:
    """A stopwatch that takes a given number of laps."""

    def __init__(self, laps: int) -> None:
        self.running, self.batches = True, list[Any]()
        self._laps = laps

    def lap(self, batches: Any, loss: Any) -> None:
        self.batches.append(batches)
        self.running = len(self.batches) < self._laps


def engine_with_a_sleep(folder: Path, laps: int, **inference: Any) -> dict[str, float]:
    """Return the metrics of requests with a sleep in each of the model's steps."""
    asked = {"batch_size": 2, "prompt_tokens": 8, "new_tokens": 5, **inference}
    work = {"mode": "inference", "model": MODEL, "inference": asked}
    run = testing.make_run(folder, {**work, "resources": {"device": "cpu"}})
    plugin = VLLM(VLLMOptions(enforce_eager=True), "vllm")
    plugin.prepare_process(run)
    run.model = plugin.load_model(run)
    ids = torch.arange(16).reshape(2, 8)
    run.batches = itertools.repeat(Batch({"input_ids": ids}, 2, TokenCounts(16, 16, 16), 16))
    engine: Any = plugin.build_engine(run)
    engine._server.apply_model(_slow)
    try:
        engine.run(Laps(laps))
    finally:
        testing.close_run(run)
    samples = [Sample(step=n, seconds=1.0, **NO_COUNTS) for n in range(laps)]
    window = Window(started=0.0, ended=float(laps), samples=tuple(samples))
    return {one.name: one.value for one in engine.metrics(window) if one.value is not None}


def _slow(model: Any) -> None:
    model.register_forward_pre_hook(lambda *_: time.sleep(PLANTED_SECONDS))


def test_a_planted_sleep_is_found_between_tokens_and_before_the_first(tmp_path: Path) -> None:
    found = engine_with_a_sleep(tmp_path, laps=2)
    planted = 1000 * PLANTED_SECONDS
    assert planted <= found["time_to_first_token_p50"]
    assert planted <= found["inter_token_latency_p50"]
    assert found["request_latency_p50"] >= 5 * planted
    assert found["decode_tokens_per_second"] <= 2 / PLANTED_SECONDS


def test_requests_at_a_rate_join_those_that_are_answered(tmp_path: Path) -> None:
    found = engine_with_a_sleep(tmp_path, laps=4, rate=1000.0)
    # Two at a time, each of five steps: the last of eight waits for six before it.
    assert found["queueing_p99"] >= 3 * 5 * 1000 * PLANTED_SECONDS * 0.9
    assert found["request_latency_p99"] >= found["queueing_p99"] + 5 * 1000 * PLANTED_SECONDS
    assert found["requests_per_second"] <= 2 / (5 * PLANTED_SECONDS)


def test_latencies_are_of_every_token(results: dict[str, Result]) -> None:
    found = metrics_of(results["vllm"])
    assert found["measured_requests"] == 4 * 3
    assert found["measured_inter_token_latencies"] == 4 * 3 * 11
    assert found["time_to_first_token_p50"] <= found["request_latency_p50"]
