"""Tables of a profile's memory."""

from __future__ import annotations

from accel_bench_profile.figures.modules import ROOT
from accel_bench_profile.figures.schema import RankProfile
from accel_bench_profile.view import memory_tables


def test_what_the_model_itself_saves_has_the_name_that_waterfalls_give_it() -> None:
    rank = RankProfile(
        rank=0, device="cpu", steps=1, step_seconds=1.0, window_step_seconds=1.0,
        saved={"": 10, "model.norm": 5},
    )  # fmt: skip
    (table,) = memory_tables(rank, "", 10)
    assert [row["module"] for row in table.rows] == [ROOT, "model.norm"]
