"""The model of docs/models.md, which is none of transformers: trained, counted and judged."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, surroundings

import accel_bench
from accel_bench import RankResult
from accel_bench.testing import run_scenario

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
FILE = re.compile(
    r"^`([a-z_]+\.(?:toml|py|yaml))`:\n\n```[a-z]+\n(.*?)^```", re.MULTILINE | re.DOTALL
)


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The files that stand on the page."""
    return dict(FILE.findall(PAGE.read_text(encoding="utf8")))


@pytest.fixture(scope="module")
def site(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What pip installs of them, and the scenario beside it."""
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name, text in files.items():
        (source / name).write_text(text, encoding="utf8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    (site / "forecast.yaml").write_text(files["forecast.yaml"])
    with surroundings(site, {"PYTHONPATH": str(site)}):
        yield site


def train(site: Path, **settings: Any) -> RankResult:
    """Train the baseline in this process; return the one rank of a run that is as asked."""
    given = {"measure.phase_steps": 0, "resources.device": "cpu", **settings}
    done = run_scenario(site / "forecast.yaml", only=["baseline"], settings=given)["baseline"]
    assert (done.status, done.reasons) == ("ok", ())
    (rank,) = done.ranks
    return rank


@pytest.fixture(scope="module")
def trained(site: Path) -> RankResult:
    """A run as the page says it."""
    return train(site)


def losses(rank: RankResult) -> list[float]:
    """The loss of every measured step."""
    assert rank.window is not None
    return [sample.loss for sample in rank.window.samples]


def test_it_trains_and_all_of_it_receives_gradients(trained: RankResult) -> None:
    found = losses(trained)
    assert sum(found[-5:]) < 0.7 * sum(found[:5])
    assert trained.effective is not None
    flow = trained.effective.gradient_flow
    assert flow is not None and flow.tensors_with_gradient == flow.trained_tensors == 6
    assert trained.effective.model_class == "Forecaster"


def test_micro_batches_add_up_to_the_same_training(site: Path, trained: RankResult) -> None:
    sizes = {"train.micro_batch_size": 2, "train.gradient_accumulation": 4, "measure.steps": 5}
    assert losses(train(site, **sizes)) == pytest.approx(losses(trained)[:5], rel=1e-5)


def test_its_products_are_counted_by_hand(trained: RankResult) -> None:
    assert trained.workload is not None
    # 5 taps of one channel into 32, 5 of 32 into 32, and 32 into one value, for each point.
    assert trained.workload.matmul_parameters == pytest.approx(5 * 32 + 5 * 32 * 32 + 32)


def test_the_program_judges_it_as_any_other(site: Path, tmp_path: Path) -> None:
    arguments = ["--rounds", "1", "--device", "cpu", "--format", "json", "--quiet"]
    done = call("run", str(site / "forecast.yaml"), *arguments, folder=tmp_path)
    assert done.code == 0, done.err
    rows = {row["stack"]: row for row in json.loads(done.out)["experiments"]}
    assert rows["wide-precision"]["loss_verdict"] == "bitwise equal"
    runs = accel_bench.open_store(tmp_path / "accel_bench_results").select()
    assert {run.status for run in runs} == {"ok"}
    assert {one.distribution for run in runs for one in run.plugins} >= {"acme-forecast"}
