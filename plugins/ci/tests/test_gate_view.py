"""The gate's report in every format: equal figures, and escaped names."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from accel_bench_ci.gate import gate_report, render_gate
from accel_bench_ci.verdict import GatePoint, GateReport

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.sequential import Outcome
from accel_bench.errors import AccelBenchError
from accel_bench.report.render_terminal import render_terminal
from accel_bench.result import Status


def point(outcome: Outcome, reason: str = "why", **changes) -> GatePoint:
    fields = {
        "sweep": {"k": outcome},
        "outcome": outcome,
        "reason": reason,
        "stack_id": "aaa",
        "against_id": "bbb",
        "rounds": 5,
        "looks": 1,
        "ratio": Interval(median=0.95, low=0.94, high=0.96),
        "slower_by": 0.0526,
        "slower_by_at_most": 0.06,
        "loss_verdict": "equivalent",
        "status": Status.OK,
        "against_status": Status.OK,
        "seconds": 1.5,
    }
    return GatePoint(**{**fields, **changes})


def report(*points: GatePoint) -> GateReport:
    return GateReport(
        scenario="peft",
        stack="fast",
        against="lora",
        floor=0.01,
        outcome="failed",
        exit_code=1,
        points=points,
    )


ALL = report(*map(point, ("passed", "regression", "inconclusive", "failed", "skipped")))


def test_junit_counts_what_a_ci_system_shows() -> None:
    root = ElementTree.fromstring(render_gate(ALL, "junit"))
    (suite,) = root
    counts = [suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")]
    assert (root.tag, suite.tag, counts) == (
        "testsuites",
        "testsuite",
        ["5", "2", "1", "1", "7.500"],
    )
    kinds = [[child.tag for child in case] for case in suite]
    assert kinds == [["system-out"], ["failure"], ["failure"], ["error"], ["skipped"]]
    assert suite[1].get("name") == "fast (k=regression) against lora"
    assert "times as fast: 0.950 [0.940, 0.960]" in str(suite[1][0].text)


def test_no_reason_breaks_out_of_xml_or_of_a_table() -> None:
    nasty = report(point("regression", reason="</testcase>\x00\x1b[31m| <b> & \n# x"))
    case = ElementTree.fromstring(render_gate(nasty, "junit"))[0][0]
    assert case[0].get("message") == r"</testcase>\x00\x1b[31m| <b> &  # x"
    assert "\x1b" not in render_gate(nasty, "table")
    markdown = render_gate(nasty, "markdown")
    assert "\\|" in markdown
    assert "<b>" not in markdown.replace("\\<b\\>", "")
    assert not [line for line in markdown.splitlines() if line.startswith("# x")]


def test_csv_and_json_hold_every_figure_under_one_name() -> None:
    rows = list(csv.DictReader(io.StringIO(render_gate(ALL, "csv"))))
    document = json.loads(render_gate(ALL, "json"))
    assert [row["outcome"] for row in rows] == [one["outcome"] for one in document["points"]]
    for name in set(document["points"][0]) - {
        *("ratio", "confirmation_ratio", "quantity", "reasons", "sweep", "training_reasons")
    }:
        assert name in rows[0]
    assert (rows[0]["ratio_low"], rows[0]["floor"]) == ("0.94", "0.01")
    assert rows[0]["quantity_name"] == "tokens_per_second"


def test_people_see_every_point_with_its_reason() -> None:
    printed = render_gate(ALL, "table")
    assert printed.splitlines()[:2] == [
        "peft: failed (exit 1)",
        "fast against lora, floor 1 %",
    ]
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("k=")] == [
        one.outcome for one in ALL.points
    ]
    assert printed.splitlines().count("why") == 5
    lines = render_gate(ALL, "markdown").splitlines()
    assert (
        "| k=passed | passed | 0.950 \\[0.940, 0.960\\] | 0.943 | 5 | - | equivalent | not tested |"
        in lines
    )


def test_the_reason_of_a_single_point_is_the_answer() -> None:
    printed = render_gate(report(point("regression", "fast is slower, 0.950 times")), "table")
    assert printed.splitlines()[:2] == ["peft: failed (exit 1)", "fast is slower, 0.950 times"]
    narrow = render_terminal(gate_report(report(point("passed"))).sections, 80)
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_form_that_there_is_not_is_refused() -> None:
    with pytest.raises(AccelBenchError, match="did you mean 'table'"):
        render_gate(ALL, "tabel")
