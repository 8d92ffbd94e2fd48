"""Tables on a narrow terminal: every command's, with all its cells whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import make_summary
from cli.program import call
from recommendation_factory import experiment, in_turn, runs
from serving_factory import serving
from typer.main import get_command
from whole_tables import assert_whole

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.cli.main import app
from accel_bench.report.formats import FORMATS
from accel_bench.report.table import Report, Table
from accel_bench.report.views.run_table import stacks_report
from accel_bench.result import Metric, Result
from accel_bench.store.database import open_store
from accel_bench.store.sessions import SessionRecord

STACKS = ("baseline", "activation-checkpointing-selective", "torch-compile-max-autotune")
PEAK = 19_876_543_210
SPEED = Interval(median=123_456.7, low=120_000.0, high=126_000.0)


def with_peak(run: Result, peak: int) -> Result:
    """The same run with a peak of memory."""
    (rank,) = run.ranks
    metrics = [one.model_copy(update={"value": peak}) for one in rank.metrics]
    return run.model_copy(update={"ranks": (rank.model_copy(update={"metrics": tuple(metrics)}),)})


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stacks with long names on an L4, at two batches and rates, in two sessions."""
    folder = tmp_path_factory.mktemp("results")
    with open_store(folder, write=True) as store:
        for session in ("monday", "tuesday"):
            store.add_session(
                SessionRecord(
                    id=session,
                    started_at="2026-01-01T00:00:00Z",
                    scenario="unnamed",
                )
            )
            stacks = [
                runs(experiment(name, micro, learning_rate=rate), factor * micro, session=session)
                for name, factor in zip(STACKS, (1.0, 1.254321, 0.8), strict=True)
                for micro, rate in ((1, 1e-4), (4, 1e-4), (4, 3e-4))
            ]
            for run in in_turn(*stacks):
                store.add(with_peak(run, PEAK))
    return folder


def answered() -> Report:
    """Stacks that answer requests, with all their latencies and rates."""
    latencies = ("time_to_first_token", "inter_token_latency", "queueing")
    extra = [
        Metric(name=f"{name}_p{at}", value=1234.5 * at, unit="ms", scope="rank", plugin="generate")
        for name in latencies
        for at in (50, 90, 99)
    ]
    extra += [
        Metric(name=name, value=123_456.0, unit="1/s", scope="rank", plugin="generate")
        for name in ("prefill_tokens_per_second", "decode_tokens_per_second", "kv_cache_bytes")
    ]
    found = []
    stacks = (serving("base", 12.5), serving("prompt-lookup-decoding", 10.25))
    for run in (run for stack in stacks for run in stack):
        (rank,) = run.ranks
        rank = rank.model_copy(update={"metrics": (*rank.metrics, *extra)})
        found.append(run.model_copy(update={"ranks": (rank,)}))
    experiments = list({run.experiment.id: run.experiment for run in found}.values())
    return stacks_report([make_summary(experiments, found, baseline="base")])


VIEWS: dict[str, Callable[[], Report]] = {
    "run inference": answered,
}
"""Tables of commands that measure, by what they are made of."""

COMMANDS = (
    "catalog devices",
    "catalog devices show h100-sxm",
    "catalog prices",
    "catalog models",
    "scenarios list",
    "catalog stacks",
    "op list",
    "plugins",
    "plugins show lora",
    "doctor --no-noise",
    "results list",
    "results list --group-by stack",
    "results pivot",
    "results pivot --columns stack",
    "results summary",
    "results cost --price 1.2345 --tokens 1e9",
    "history unnamed",
    "recommend --no-estimates --model tiny-llama-cpu --tokens 1e12",
    f"compare {experiment(STACKS[0], 1, learning_rate=1e-4).id} "
    f"{experiment(STACKS[1], 1, learning_rate=1e-4).id}",
)


@pytest.mark.box
@pytest.mark.parametrize("what", [*COMMANDS, *VIEWS])
def test_a_table_fits_80_and_120_columns_and_all_its_cells_are_whole(
    what: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(results))
    for table in tables(what, monkeypatch):
        assert_whole(table)


def tables(what: str, monkeypatch: pytest.MonkeyPatch) -> list[Table]:
    """The tables that a command prints."""
    reports = [VIEWS[what]()] if what in VIEWS else []
    table = FORMATS["table"]

    def keep(report: Report) -> str:
        reports.append(report)
        return table(report)

    if not reports:
        monkeypatch.setitem(FORMATS, "table", keep)
        done = call(*what.split())
        assert done.code == 0, done.err
    found = [one for report in reports for section in report.sections for one in section.tables]
    assert found
    return found


@pytest.mark.box
@pytest.mark.parametrize(
    "what",
    [
        "results cost --price 1",
        "history unnamed",
        "recommend --no-estimates --model tiny-llama-cpu --tokens 1e6",
        "results convergence",
    ],
)
def test_experiments_that_differ_in_one_key_are_told_apart_by_it(
    what: str, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(results))
    out = " ".join(call(*what.split(), "--wide").out.split())
    for rate in ("0.0001", "0.0003"):
        name = f"baseline (train.micro_batch_size=4, train.learning_rate={rate})"
        assert name in out
    rows = out.lower().replace("rate of baseline (train.micro_batch_size=4) ", "")
    assert "baseline (train.micro_batch_size=4) " not in rows
    assert "baseline (train.micro_batch_size=1) " in out  # the only one of its name


def test_an_ambiguous_name_lists_experiments_by_what_differs(results: Path) -> None:
    found = call("compare", "monday/baseline", "tuesday/baseline", "--results", str(results))
    assert found.code == 2
    for rate in ("0.0001", "0.0003"):
        assert f"baseline (train.micro_batch_size=4, train.learning_rate={rate}), " in found.err


@pytest.mark.box
def test_every_command_that_prints_tables_can_print_them_wide() -> None:
    def options(command: Any) -> Iterator[set[str]]:
        yield {name for parameter in command.params for name in parameter.opts}
        for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
            yield from options(command.get_command(None, name))

    found = [one for one in options(get_command(app)) if "--format" in one]
    without = [one for one in found if "--wide" not in one]
    assert len(found) > 25
    # `results export` writes files, and the format of `import` is that of what it reads.
    assert len(without) == 2 and all({"--output", "--set"} & one for one in without)
