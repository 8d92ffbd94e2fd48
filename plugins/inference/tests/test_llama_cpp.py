"""llama.cpp's server against `generate`: equal weights, equal tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from accel_bench import testing
from accel_bench.analysis.checks.agreement import agreement
from accel_bench.analysis.checks.comparability import comparability
from accel_bench.modeling.loading import load_base_model
from accel_bench.result import Result

from .gguf_model import FIRST_LETTER, write_gguf

pytestmark = pytest.mark.release

llama_cpp = pytest.importorskip("xllamacpp", reason="no llama.cpp: pip install xllamacpp gguf")

MODEL = {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 2}}

SCENARIO = """
mode: inference
model: {{id: tiny-llama-cpu, overrides: {{num_hidden_layers: 2}}}}
data: {{samples: 64}}
inference: {{batch_size: 2, prompt_tokens: 24, new_tokens: 12}}
measure: {{warmup: 1, steps: 4, rounds: 1, phase_steps: 0}}
stacks:
  transformers: []
  llama-cpp:
    set:
      engine:
        use: openai-endpoint
        url: "{url}"
        extra: {{ignore_eos: true, logprobs: {ids:d}}}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of llama.cpp's server with the weights of the scenario's model."""
    folder = tmp_path_factory.mktemp("llama")
    model = load_base_model(testing.make_run(folder, {"model": MODEL}))
    write_gguf(model, folder / "model.gguf")
    settings = llama_cpp.CommonParams()
    settings.model.path = str(folder / "model.gguf")
    settings.n_ctx, settings.n_parallel = 256, 2
    server = llama_cpp.Server(settings)
    yield f"{server.listening_address}/v1"


@pytest.fixture
def measured(url: str, tmp_path: Path) -> Callable[..., dict[str, Result]]:
    """Return `measured(ids, **settings)`: results of both stacks, with token ids or text."""

    def run(ids: bool, **settings: Any) -> dict[str, Result]:
        path = tmp_path / "servers.yaml"
        path.write_text(SCENARIO.format(url=url, ids=ids))
        return testing.run_scenario(path, settings=settings)

    return run


def test_llama_cpp_answers_as_generate_does(measured: Callable[[bool], dict[str, Result]]) -> None:
    found = measured(True)
    assert found["llama-cpp"].status.completed, found["llama-cpp"].reasons
    same = agreement(found["transformers"], found["llama-cpp"])
    assert same is not None
    assert (same.requests, same.differing, same.compared) == (10, 0, 10 * 12)
    assert comparability([found["transformers"]], [found["llama-cpp"]]).refusal == ""


def test_the_letters_of_llama_cpp_are_those_tokens(
    measured: Callable[[bool], dict[str, Result]],
) -> None:
    found = measured(False)
    (ours,), (theirs,) = found["transformers"].ranks, found["llama-cpp"].ranks
    assert ours.answers is not None and theirs.answers is not None
    assert theirs.answers.unit == "letters"
    letters = [[letter - FIRST_LETTER for letter in one] for one in theirs.answers.tokens]
    assert letters == [list(one) for one in ours.answers.tokens]


def test_llama_cpp_remembers_prompts_and_says_so(
    measured: Callable[..., dict[str, Result]],
) -> None:
    asked = {"inference.seed": 7}
    first, again = (measured(True, **asked)["llama-cpp"] for _ in range(2))
    assert (first.status.value, again.status.value) == ("ok", "degraded")
    assert "of the prompts' tokens from a cache" in again.reasons[0]
    extra = {"ignore_eos": True, "cache_prompt": False}
    off = measured(True, **asked, **{"stacks.llama-cpp.set.engine.extra": extra})
    assert off["llama-cpp"].status.value == "ok"
