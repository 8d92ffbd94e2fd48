"""What readers see of the update verdict: whether its distance is exact, and what it cost."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from analysis_factory import FAST, LORA, STEADY, UPDATE, make_rank, make_result, make_summary

from accel_bench.analysis.checks.training_verdict import TrainingComparison
from accel_bench.analysis.statistics.verdict import ALIKE, Training
from accel_bench.analysis.wording import TONES
from accel_bench.report.views import compare, run_table
from accel_bench.report.views.run_table import details
from accel_bench.report.views.training import verdict_parts
from accel_bench.result import Result, TensorUpdate


@pytest.mark.parametrize(
    ("difference", "estimated", "shown"),
    [(0.0123, True, "~1.2 %,"), (0.0123, False, "1.2 %,"), (0.0, True, "0 %,")],
)
def test_a_distance_that_sketches_estimate_is_marked(
    difference: float, estimated: bool, shown: str
) -> None:
    parts = verdict_parts("equivalent", difference, 0.1, estimated)
    assert parts == ("equivalent", shown, "limit 10 %")


@pytest.mark.parametrize("word", get_args(Training))
def test_the_first_line_of_each_verdict_has_its_tone(word: Training) -> None:
    parts = verdict_parts(word, 0.0, 0.1)
    assert TONES[parts[0]] == (
        "good" if word in ALIKE else "bad" if word.startswith("different") else "warn"
    )


def run(experiment: object, number: int, kept: int = 0, reason: str = "") -> Result:
    tensor = TensorUpdate(elements=100, sketch=(1.0,) * 31, norm=5.0 if kept else None)
    changes = {"tensors": {"head": tensor}, "kept_bytes": kept, "kept_reason": reason, "steps": 3}
    rank = make_rank().model_copy(update={"update": UPDATE.model_copy(update=changes)})
    return make_result(experiment, round=number, ranks=[rank])  # type: ignore[arg-type]


def test_seconds_and_bytes_of_the_update_stand_in_the_details() -> None:
    base = [run(LORA, number, kept=400) for number in range(len(STEADY))]
    fast = [
        run(FAST, number, kept=400).model_copy(
            update={"update_distances": {base[number].run_id: {"head": 0.01}}}
        )
        for number in range(len(STEADY))
    ]
    read = "update read in 0.01 s outside the windows: sketches of 1 tensor in 248 bytes"
    first, second, *_ = details(make_summary([LORA, FAST], [*base, *fast]))
    assert f"{read}, the whole change in a file of 400 bytes" in first
    assert second.endswith("400 bytes; its distance is exact")

    above = "it takes 412 MiB, and 256 MiB may be used"
    sketched = [run(FAST, number, reason=above) for number in range(len(STEADY))]
    _, third, *_ = details(make_summary([LORA, FAST], [*base, *sketched]))
    assert f"{read}, no file of the whole change ({above})" in third
    assert third.endswith("its distance is estimated from sketches, to about 25 %")


@pytest.mark.parametrize("table", [compare.FLAT, run_table.FLAT])
def test_spreadsheets_have_every_field_of_a_comparison_of_trainings_once(table: Any) -> None:
    keys = [column.key for column in table]
    assert all(keys.count(field) == 1 for field in TrainingComparison.model_fields)
