"""`openai-endpoint` and a real server with a prompt cache: rounds send different prompts, and
cached answers are detected."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kit import in_process
from serving_factory import RememberingServer, remembering_server

from accel_bench import testing
from accel_bench.analysis.checks.outputs import compare_outputs
from accel_bench.result import Metric, Result
from accel_bench.runner.attempt import make_attempt

SECONDS_OF_A_TOKEN = 0.002
"""Planted seconds of an uncached prompt token, far above those of a request."""


def scenario(server: RememberingServer) -> dict[str, Any]:
    """Return a scenario whose samples repeat within a run."""
    return {
        "name": "remembering",
        "mode": "inference",
        "model": {"use": "none", "id": "any"},
        "data": {"use": "synthetic", "samples": 8},
        "inference": {"batch_size": 2, "prompt_tokens": 64, "new_tokens": 2},
        "engine": {"use": "openai-endpoint", "url": server.url},
        "measure": {"warmup": 2, "steps": 4, "phase_steps": 0},
        "resources": {"device": "cpu"},
    }


def measured(
    server: RememberingServer, folder: Path, stacks: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Result]:
    """Return a run of each stack, by default of the baseline alone."""
    path = folder / "remembering.json"
    path.write_text(json.dumps({**scenario(server), **({"stacks": stacks} if stacks else {})}))
    return testing.run_scenario(path, settings=settings)


def from_a_cache(result: Result) -> Metric:
    (found,) = [one for one in result.ranks[0].metrics if one.name == "cached_prompt_tokens"]
    return found


def test_each_round_asks_all_stacks_the_same_prompts_that_no_server_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = []
    with remembering_server() as one, remembering_server() as other:
        stacks = {"baseline": [], "other": {"set": {"engine.url": other.url}}}
        for number in range(2):
            of_round = partial(make_attempt, round=number)
            monkeypatch.setattr(in_process, "make_attempt", of_round)
            rounds.append(measured(one, tmp_path, stacks))
    runs = [run for found in rounds for run in found.values()]
    assert [(run.status.value, run.round) for run in runs] == [("ok", n) for n in (0, 0, 1, 1)]
    asked = {tuple(prompt) for prompt in one.asked}
    assert len(asked) == len(one.asked) == 2 * (2 + 4) * 2
    assert asked == {tuple(prompt) for prompt in other.asked}
    # Prompts may begin alike by chance; the data holds 8 samples, which all rounds ask.
    assert max(one.cached + other.cached) < 8
    before, after = ({("s", n): found[name] for n, found in enumerate(rounds)} for name in stacks)
    same = compare_outputs([(before[key], after[key]) for key in before])
    assert (same.output_verdict, same.output_requests) == ("bitwise equal", 24)
    others = compare_outputs([(run, after["s", 1 - n]) for (_, n), run in before.items()])
    assert others.output_verdict == "not tested" and "first prompt" in others.output_reason


def test_what_a_server_says_it_took_from_its_cache_degrades_the_run(tmp_path: Path) -> None:
    with remembering_server() as server:
        (first,), (again,) = (measured(server, tmp_path).values() for _ in range(2))
        (other,) = measured(server, tmp_path, **{"inference.seed": 1}).values()
    share = from_a_cache(first).value
    assert first.status.value == "ok" and share is not None and share < 0.05
    assert (again.status.value, from_a_cache(again).value) == ("degraded", 1.0)
    assert "took 100% of the prompts' tokens from a cache" in again.reasons[0]
    assert "--no-enable-prefix-caching" in again.reasons[0]
    assert other.status.value == "ok"


def test_a_server_that_says_nothing_is_told_by_prompts_that_nobody_has_asked(
    tmp_path: Path,
) -> None:
    with remembering_server(says=False, seconds_of_a_token=SECONDS_OF_A_TOKEN) as server:
        (first,), (again,) = (measured(server, tmp_path).values() for _ in range(2))
    assert not from_a_cache(first).degrades
    assert again.status.value == "degraded" and from_a_cache(again).value is None
    assert any("never asked: it answers from a cache" in reason for reason in again.reasons)
