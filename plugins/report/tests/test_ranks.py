"""Ranks beside one another: which is late, and what a comparison says of it."""

from __future__ import annotations

import pytest
from accel_bench_report.ranks import NAME, late_ranks
from analysis_factory import FAST, LORA, make_rank, make_result, make_summary

from accel_bench.report.formats import render
from accel_bench.result import Collective, Communication, Result


def communication(waiting: float, step: float = 1.0) -> Communication:
    one = Collective(calls=1, bytes=8, seconds=0.1, waiting_seconds=waiting)
    return Communication(steps=5, step_seconds=step, collectives={"all_reduce": one})


def test_ranks_that_wait_alike_are_not_late() -> None:
    assert late_ranks({0: communication(0.05), 1: communication(0.1)}) == {}
    assert late_ranks({0: communication(0.05)}) == {}


def test_of_four_ranks_the_one_that_waits_least_is_late() -> None:
    waits = {0: 0.4, 1: 0.38, 2: 0.02, 3: 0.41}
    found = late_ranks({rank: communication(wait) for rank, wait in waits.items()})
    assert found == {2: pytest.approx(0.38)}


def test_a_straggler_is_named_and_its_communication_told_in_detail() -> None:
    def run(number: int, *waits: float) -> Result:
        ranks = [
            make_rank(rank=rank, step_seconds=[0.1] * 3).model_copy(
                update={"communication": communication(wait)}
            )
            for rank, wait in enumerate(waits)
        ]
        return make_result(FAST, round=number, ranks=ranks)

    runs = [make_result(LORA, round=number) for number in range(3)]
    runs += [run(number, 0.4, 0.02) for number in range(3)]
    summary = make_summary([LORA, FAST], runs, rounds=3)
    (found,) = summary.sections[NAME]
    assert (found.stack, found.stragglers, len(found.ranks)) == ("fast", (1,), 2)
    straggler = "fast: straggler: the others wait 38% of a step for rank 1"
    assert straggler in " ".join(render([summary], "table").split())
    text = " ".join(render([summary], "table", verbose=True).split())
    assert (
        "of it is communication (all_reduce 8 bytes in 0.1 s), 21% waiting for other ranks" in text
    )
