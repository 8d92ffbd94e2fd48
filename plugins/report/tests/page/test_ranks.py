"""What the page says of a race, and of servers at a rate."""

from __future__ import annotations

import pytest
from accel_bench_report.page.scenario import scenario_page
from accel_bench_report.page.stored_plan import stored_plan
from analysis_factory import FAST, LORA, NF4, STEADY, make_rounds, scaled
from serving_factory import serving

from accel_bench.result import Status


@pytest.mark.box
def test_the_report_of_a_race_misses_no_round_that_a_dropped_stack_was_spared() -> None:
    document = {"scenario": {"measure": {"rounds": 12}}, "race": True}
    results = [run for row in (LORA, FAST) for run in make_rounds(row, [*STEADY, *STEADY, *STEADY])]
    results = [*results[:12], *results[15:27], *make_rounds(NF4, scaled(2.0))]
    for race, status in ((True, Status.OK), (False, Status.INTERRUPTED)):
        plan = stored_plan({**document, "race": race}, results)
        page = scenario_page("monday", plan, results)
        assert [row.status for row in page.summary.experiments] == [Status.OK, Status.OK, status]
        assert (page.summary.race is not None) is race


def test_a_page_ranks_by_latency_and_gives_a_saturated_server_no_rank() -> None:
    stacks = [
        serving("base", 100, seconds=0.1),
        serving("soon", 50, seconds=0.2),
        serving("full", 10, seconds=0.05, saturated=True),
    ]
    results = [run for runs in stacks for run in runs]
    names = [runs[0].experiment.stack.name for runs in stacks]
    document = {"scenario": {"baseline": "base", "stacks": {name: {} for name in names}}}
    page = scenario_page("monday", stored_plan(document, results), results)
    (rows,) = page.points
    assert [row.summary.stack for row in rows] == ["soon", "base", "full"]
    assert rows[-1].why_not_ranked == "saturated at 4.0 requests/s"
