"""The metric of docs/metrics.md, by an author who is not ours: installed, checked and run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.program import call, surroundings, write_nulls

import accel_bench
from accel_bench.testing import check_plugin

from .checking import NULL, violations

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
FILE = re.compile(r"^`([a-z_]+\.(?:toml|py))`:\n\n```[a-z]+\n(.*?)^```", re.MULTILINE | re.DOTALL)

FORGETFUL = """
from accel_bench import Options, Plugin, hookimpl


class It(Plugin[Options]):
    '''Observes a step and says nothing of it.'''

    steps = 1

    @hookimpl
    def observe_steps(self, run):
        return self

    def start(self):
        pass

    def end_step(self, batches):
        pass

    def finish(self):
        return []
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What pip installs of the files that stand on the page."""
    files = dict(FILE.findall(PAGE.read_text(encoding="utf8")))
    assert [*files] == ["pyproject.toml", "acme_interruptions.py"]
    source, site = (tmp_path_factory.mktemp(name) for name in ("source", "site"))
    for name, text in files.items():
        (source / name).write_text(text, encoding="utf8")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index"]
    pip += ["--no-deps", "--no-build-isolation", "--target", str(site), str(source)]
    subprocess.run(pip, check=True, capture_output=True)
    with surroundings(site, {"PYTHONPATH": str(site)}):
        yield site


def test_it_runs_for_real_and_leaves_its_series(site: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path, metrics="[{use: interruptions, steps: 4}]")
    done = call("run", str(scenario), "--quiet", folder=tmp_path, PYTHONPATH=str(site))
    assert done.code == 0, done.err
    runs = accel_bench.open_store(tmp_path / "accel_bench_results").select()
    for run in runs:
        (rank,) = run.ranks
        assert rank.observed_steps == 4
        assert rank.window is not None and len(rank.window.samples) == 2
        found = {metric.name: metric for metric in rank.metrics}
        assert {*found} == {"preemptions_per_step", "page_faults_per_step"}
        for metric in found.values():
            assert metric.plugin == "interruptions"
            assert metric.series is not None and len(metric.series.values) == 4
            assert metric.series.times[0] > rank.window.ended
    plugins = {(one.name, one.distribution) for run in runs for one in run.plugins}
    assert ("interruptions", "acme-interruptions") in plugins

    # It is what `--compare` judges, of the same runs.
    named = ["--resume", "--compare", "interruptions.preemptions_per_step", "--format", "json"]
    done = call("run", str(scenario), "--quiet", *named, folder=tmp_path, PYTHONPATH=str(site))
    quantities = [row["quantity"] for row in json.loads(done.out)["experiments"]]
    for quantity in quantities:
        assert (quantity["unit"], quantity["better"]) == ("1", "lower")
        assert quantity["value"] or "is not positive in every run" in quantity["obstacle"]
    assert done.code == int(any(one["obstacle"] for one in quantities)), done.err
    assert len(accel_bench.open_store(tmp_path / "accel_bench_results").select()) == len(runs)


@pytest.mark.usefixtures("site")
def test_it_keeps_the_contract() -> None:
    report = check_plugin("interruptions", scenario=NULL, archs=(), dtypes=())
    said = {clause.name: clause.sentence for clause in report.proven}
    counters = "preemptions_per_step, page_faults_per_step"
    assert said["steps of its own"] == f"10 after the window, for {counters}"


def test_steps_without_a_metric_violate_the_contract(tmp_path: Path) -> None:
    (found,) = violations(tmp_path, FORGETFUL, scenario=NULL)[:1]
    assert "observed 1 steps, and `finish` returned no metric of them" in found
