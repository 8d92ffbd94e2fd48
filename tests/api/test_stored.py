"""`accel_bench.open_store`: what is stored, from Python."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from analysis_factory import LORA, NF4, make_rounds

import accel_bench
from accel_bench.errors import StoreError
from accel_bench.store.database import SessionRecord, open_store
from accel_bench.store.listing import add_labels
from accel_bench.store.schema import RUNS


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A store of two stacks in two rounds."""
    results = [*make_rounds(LORA, [0.15, 0.151]), *make_rounds(NF4, [0.1, 0.101])]
    with open_store(tmp_path, write=True) as store:
        for session in {result.session for result in results}:
            record = SessionRecord(id=session, started_at="2026-01-01T00:00:00", scenario="one")
            store.add_session(record)
        for result in results:
            store.add(result)
        add_labels(store, results[0].run_id, "tag", ["keep"])
    return tmp_path


def test_a_frame_is_filtered_grouped_and_cut(place: Path) -> None:
    stored = accel_bench.open_store(place)
    assert len(stored) == 4
    frame = stored.frame()
    assert list(frame["provenance"]) == ["measured"] * 4
    assert frame["tags"].dropna().tolist() == [["keep"]]
    assert set(stored.frame(where="stack = nf4")["stack"]) == {"nf4"}
    assert len(stored.frame(newest=3)) == 3
    groups = stored.frame(group_by=["stack"])
    assert dict(zip(groups["stack"], groups["runs"], strict=True)) == {"lora": 2, "nf4": 2}
    assert len(stored.frame(where="stack = nothing")) == 0


def test_a_damaged_run_stays_visible_and_out_of_groups(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = accel_bench.open_store(place)
    damaged = stored.select(where="stack = nf4")[0].run_id
    with open_store(place, write=True) as store, store.changing() as connection:
        changed = RUNS.update().where(RUNS.c.run_id == damaged).values(tokens_per_second=1e9)
        connection.execute(changed)
    frame = stored.frame().set_index("run_id")
    assert frame.loc[damaged, "status"] == "corrupt"
    assert frame["tokens_per_second"].max() < 1e9
    with caplog.at_level(logging.WARNING):
        groups = stored.frame(group_by=["stack"])
    assert groups["runs"].sum() == 3
    assert damaged in caplog.text


def test_two_stacks_are_compared_as_the_program_compares_them(place: Path) -> None:
    stored = accel_bench.open_store(place)
    (one,) = stored.compare("lora", "nf4")
    assert one.ratio is not None
    assert one.ratio.median == pytest.approx(1.5, rel=0.02)
    (apart,) = stored.compare("lora", "nf4", other=stored)
    assert apart.b.stack == "nf4"


def test_what_is_not_there_is_named(place: Path) -> None:
    stored = accel_bench.open_store(place)
    with pytest.raises(StoreError, match="begins with 'zzz'"):
        stored.select("zzz")
    with pytest.raises(StoreError, match="did you mean 'stack'"):
        stored.frame(where="stak = nf4")
    assert stored.select(stored.select()[0].run_id) == stored.select()[:1]
