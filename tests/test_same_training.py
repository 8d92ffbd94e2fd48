"""Mistakes that train otherwise are caught by name; honest accelerations are not refused.

At an ordinary rate of fine-tuning, where the loss hardly moves. One run each beside one baseline:
how fast they are is left to the tests of the statistics.
"""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from same_training.distribution import CHEATS, HONEST, MIXTURES, install
from same_training.honest import SETTINGS, SHIPPED
from same_training.setting import (
    MODELS,
    RATES,
    SIZES,
    WORK,
    Setting,
    applies,
    caught,
    random_model,
    refusal,
    work,
)

from accel_bench.analysis.checks.training import compare_training
from accel_bench.analysis.schema import ExperimentSummary
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.plugins.registry import installed
from accel_bench.testing import run_program, run_scenario

# PEFT asks transformers by a name that is being replaced.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

LEFT_TO_RELEASES = frozenset(
    {
        *("large-epsilon", "zero-rate", "twice-the-rate", "half-of-the-length", "cuts-gradients"),
        *("trains-on-padding", "rounds-weights", "drops-nearly-all", "stale-gradients"),
        *("contiguous-transpose", "zeroes-in-place", "double-loss", "recomputes-activations"),
        *("drops-the-mask", "foreach", "for-loop", "one-micro-batch", "longest", "two-threads"),
        *("compiled", "recomputed", "selective", "deterministic-algorithms"),
        *("mapped-weights", "flat-weights", "sums-in-halves", "eager-attention", "math-kernel"),
        *("micro-batches-reversed", "freezes-lora-a", "no-momentum", "forgets-the-norms"),
        *("steps-half-of-the-tensors", "keeps-largest-gradients", "last-micro-batch-only"),
        *("replays-copies", "replays-every-second-step", "trains-in-start-metrics"),
    }
)
"""Stacks that are like another one, or take seconds."""


def cases(names: Iterable[str]) -> list[Any]:
    """Return each stack with each setting in which it changes something.

    By default full training from random weights, and what only an adapter has; the rest is left to
    releases.
    """
    found = []
    for weights, trains, name in itertools.product(MODELS, RATES, names):
        if applies(name, trains):
            chosen = trains == "full" or not applies(name, "full")
            by_default = weights == "random" and chosen and name not in LEFT_TO_RELEASES
            marks = [] if by_default else [pytest.mark.release]
            marks += [pytest.mark.box] if name in (*SHIPPED, "hf-trainer") else []
            setting = (trains, weights)
            identity = f"{trains}-{weights}-{name}"
            found.append(pytest.param(setting, name, marks=marks, id=identity))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the plugins are installed."""
    folder = tmp_path_factory.mktemp("same-training")
    install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        installed.cache_clear()
        yield folder
    installed.cache_clear()


@pytest.fixture(scope="module")
def settings(folder: Path) -> Iterator[Callable[[tuple[str, str]], Setting]]:
    """Return the setting of what trains and of how its weights begin, made once."""
    made: list[Setting] = []

    @cache
    def setting(where: tuple[str, str]) -> Setting:
        trains, weights = where
        made.append(Setting(trains, model(weights), folder))
        return made[-1]

    @cache
    def model(weights: str) -> dict[str, Any]:
        return MODELS[weights](folder)

    yield setting
    for one in made:
        one.close()


@pytest.mark.parametrize(("where", "name"), cases(CHEATS))
def test_a_cheat_is_refused_by_name(settings: Any, where: tuple[str, str], name: str) -> None:
    row = settings(where).row(name)
    show(where, name, row)
    assert re.search(caught(name), refusal(row)), refusal(row) or row.reasons
    assert row.update_exact or row.update_difference is None


@pytest.mark.parametrize(("where", "name"), cases([*HONEST, *SETTINGS, *SHIPPED]))
def test_an_honest_acceleration_is_not_refused(
    settings: Any, where: tuple[str, str], name: str
) -> None:
    row = settings(where).row(name)
    show(where, name, row)
    assert row.update_verdict in ALIKE or row.update_excused, row.update_reason
    assert row.update_exact
    assert not refusal(row)


MIXTURE: dict[str, Any] = {
    "model": {
        "id": "granite-3-1b-a400m",
        "overrides": {
            **SIZES,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "attention_dropout": 0.0,
        },
    },
    "train": {"micro_batch_size": 4, "learning_rate": 1e-3, "precision": "bf16-autocast"},
    "measure": {"warmup": 1, "steps": 8, "rounds": 1, "phase_steps": 0},
}
"""A mixture of experts that computes in 16 bits."""


def test_a_mixture_in_16_bits_tells_rounding_from_other_training(folder: Path) -> None:
    honest = {
        "eager": {"set": {"model.attention": "eager"}},
        "float32": {"set": {"train.precision": "as-is"}},
    }
    stacks = {"baseline": [], **honest, **{name: [name] for name in MIXTURES}}
    path = folder / "mixture.yaml"
    path.write_text(json.dumps({**WORK, **MIXTURE, "stacks": stacks}), encoding="utf8")
    results = run_scenario(path)
    found = {
        name: compare_training({("", 0): results["baseline"]}, {("", 0): results[name]})
        for name in results
    }
    for name, one in found.items():
        print("TABLE", name, one.update_difference, one.update_norm_ratio, one.update_reason)
    assert {found[name].update_verdict for name in honest} == {"equivalent"}
    words = {name: found[name].training_difference for name in MIXTURES}
    assert "its experts changed" in words["freezes-an-expert"]
    assert "its experts changed" in words["slows-experts"]
    assert "its routers changed" in words["freezes-the-routers"]
    assert "what is neither expert nor router is" in words["forgets-the-causal-mask"]


@pytest.mark.release
@pytest.mark.parametrize(
    "name", [name for name in CHEATS if applies(name, "ranks") and not applies(name, "full")]
)
def test_a_cheat_of_several_ranks_is_refused_by_name(folder: Path, name: str) -> None:
    scenario = {
        **work("full", random_model()),
        "resources": {"device": "cpu", "devices": 2, "threads": 1},
        "stacks": {"baseline": [], name: [name]},
    }
    path = folder / "ranks.yaml"
    path.write_text(json.dumps(scenario), encoding="utf8")
    site = os.pathsep.join([str(folder), str(Path(__file__).parent)])
    options = ("--oversubscribe", "--format", "json")
    done = run_program("run", str(path), *options, folder=folder, environment={"PYTHONPATH": site})
    rows = {row["stack"]: row for row in json.loads(done.stdout)["experiments"]}
    assert not rows["baseline"]["reasons"], done.stderr
    assert re.search(caught(name), " ".join(rows[name]["failed_audit"])), rows[name]["reasons"]


def show(where: tuple[str, str], name: str, row: ExperimentSummary) -> None:
    """Print a line of a table, which `pytest -rP` shows."""
    apart = "" if row.update_difference is None else f"{row.update_difference:.2g}"
    words = (*where, name, row.loss_verdict, row.update_verdict, apart, refusal(row))
    print("TABLE", *words, *row.reasons, sep=" | ")
