"""Memory of a row: the stage formula, the rank that needed most, and the stages of its life."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from analysis_factory import LORA, make_rank, make_result, make_summary

from accel_bench.analysis.metrics.memory import (
    MemoryFigure,
    StageMemory,
    largest,
    memory_figures,
    stage_peaks,
    stages_of,
)
from accel_bench.machine.process_memory import Stage
from accel_bench.result import Figure, Metric, RankResult, Result

Peaks = Sequence[tuple[int, int | None]]


def metric(figure: Figure, value: int | None, kind: str, rank: int | None = None) -> Metric:
    facts: dict[str, Any] = {"unit": "bytes", "scope": "rank", "kind": kind, "rank": rank}
    return Metric(name=f"{figure}_bytes", figure=figure, value=value, **facts)


def mark(name: str, now: int | None, peak: int | None = None, gpu: bool = False) -> Stage:
    if gpu:
        return Stage(
            name=name, seconds=1, device_allocated_bytes=now, device_peak_allocated_bytes=peak
        )
    return Stage(name=name, seconds=1, host_bytes=now, host_peak_bytes=peak)


def rank(number: int, *metrics: Metric, stages: Sequence[Stage] = ()) -> RankResult:
    changes = {"metrics": metrics, "stages": tuple(stages)}
    return make_rank(number).model_copy(update=changes)


def run(*ranks: RankResult, outside: Sequence[Metric] = (), round: int = 0) -> Result:
    result = make_result(LORA, ranks=ranks, round=round)
    return result.model_copy(update={"metrics": tuple(outside)})


def test_the_stage_formula_gives_the_published_example() -> None:
    """Bytes as the memory metrics of the hub Trainer give them: before_init, init, train."""
    before_init, init, train = (4747206656, 0), (0, 0), (126487040, 11016635392)
    assert stage_peaks([before_init, init, train]) == (4_873_693_696, 15_890_329_088)


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([(100, 0)], (100, 100)),
        ([(100, 50), (20, 0)], (120, 150)),
        ([(100, 0), (-30, 10), (10, 5)], (100, 100)),
        ([(100, 0), (-30, 90), (10, 5)], (100, 160)),
        ([(100, 0), (20, None)], (120, None)),
    ],
    ids=["one", "peak-early", "given-back", "peak-within", "unknown-peak"],
)
def test_allocated_and_peak_are_the_largest_of_the_running_sums(
    stages: Peaks, expected: tuple[int, int | None]
) -> None:
    assert stage_peaks(stages) == expected


def test_marks_become_stages_with_their_deltas() -> None:
    found = stages_of(
        rank(
            0,
            stages=[
                mark("imports", 100, 120),
                mark("load_data", 110, 300),
                mark("load_model", 250, 260),
                mark("something_new", 255, 270),
                mark("build", 240, 245),
                mark("warm-up", 400, 900),
                mark("window", 390, 800),
            ],
        )
    )
    assert [(s.name, s.delta_bytes, s.peaked_delta_bytes) for s in found] == [
        ("before", 100, 20),
        ("load", 150, 50),
        ("prepare", -10, 30),
        ("train", 150, 510),
    ]
    assert {s.kind for s in found} == {"rss"}
    pairs = [(s.delta_bytes, s.peaked_delta_bytes) for s in found]
    assert stage_peaks(pairs) == (390, 900)


def test_stages_on_a_gpu_are_those_of_its_memory() -> None:
    found = stages_of(
        rank(
            0,
            stages=[
                Stage(name="imports", seconds=1, host_bytes=7),
                mark("load_model", 50, 80, gpu=True),
                mark("build", 60, 60, gpu=True),
                mark("window", 70, 200, gpu=True),
            ],
        )
    )
    assert [(s.delta_bytes, s.peaked_delta_bytes) for s in found] == [
        (0, 0),
        (50, 30),
        (10, 0),
        (10, 130),
    ]
    assert {s.kind for s in found} == {"allocated"}


def test_a_run_that_ended_early_has_the_stages_that_it_reached() -> None:
    reached = [mark("imports", 100, 100), mark("load_data", 130, 130)]
    assert [s.name for s in stages_of(rank(0, stages=reached))] == ["before", "load"]


def test_a_missing_reading_gives_no_stages_and_a_missing_peak_a_null() -> None:
    assert stages_of(rank(0, stages=[mark("imports", None)])) == ()
    (only,) = stages_of(rank(0, stages=[mark("imports", 5)]))
    assert only == StageMemory(name="before", kind="rss", delta_bytes=5, peaked_delta_bytes=None)


def test_the_largest_names_its_rank() -> None:
    ranks = [rank(n, metric("peak_rss", size, "rss")) for n, size in enumerate((5, 9, 9))]
    assert largest(run(*ranks), "peak_rss", "rss") == (9, 1)


def test_the_largest_is_not_known_when_one_is_not() -> None:
    ranks = [rank(n, metric("peak_rss", size, "rss")) for n, size in enumerate((5, None))]
    assert largest(run(*ranks), "peak_rss", "rss") is None
    assert largest(run(*ranks), "peak_rss", "other") is None


def test_figures_are_medians_over_runs_with_the_rank_that_had_them() -> None:
    runs = [
        run(
            rank(0, metric("peak_memory", 10, "allocated")),
            rank(
                1,
                metric("peak_memory", size, "allocated"),
                metric("run_peak_memory", 90, "allocated"),
            ),
            round=number,
        )
        for number, size in enumerate((20, 30, 70))
    ]
    found = memory_figures(runs)
    assert found is not None
    assert found.allocated == MemoryFigure(
        bytes=30, rank=1, kind="allocated", run_bytes=90, run_rank=1
    )
    assert found.reserved is None


def test_what_the_driver_saw_is_told_by_the_best_way_that_it_was_measured() -> None:
    both = [
        metric("peak_driver", 70, "device_above_start", rank=0),
        metric("peak_driver", 60, "process", rank=0),
        metric("run_peak_driver", 65, "process", rank=0),
    ]
    one = [both[0], metric("peak_driver", None, "process", rank=0)]
    kinds = []
    for outside in (both, one):
        found = memory_figures([run(rank(0), outside=outside)])
        assert found is not None and found.nvml is not None
        kinds.append((found.nvml.kind, found.nvml.bytes, found.nvml.run_bytes))
    assert kinds == [("process", 60, 65), ("device_above_start", 70, None)]


def test_the_stages_are_those_of_the_rank_that_peaked_highest() -> None:
    low = rank(0, stages=[mark("imports", 100, 150)])
    high = rank(1, stages=[mark("imports", 90, 500)])
    found = memory_figures([run(low, high)])
    assert found is not None
    assert found.stages[0].peaked_delta_bytes == 410


def test_the_document_holds_them_beside_the_peak() -> None:
    result = run(rank(0, metric("peak_rss", 77, "rss")))
    row = make_summary([LORA], [result], rounds=1).model_dump(mode="json")["experiments"][0]
    assert row["memory"]["rss"]["bytes"] == 77
    assert row["memory"]["rss"]["rank"] == 0
    assert row["memory"]["nvml"] is None


def test_a_row_without_runs_has_none() -> None:
    assert make_summary([LORA], []).experiments[0].memory is None
