"""JSON: one object for one scenario, a list for several, nothing that JSON cannot hold."""

from __future__ import annotations

import json
import math

import pytest
from analysis_factory import LORA, STEADY, make_rounds
from analysis_factory import make_summary as summary_of

from accel_bench.analysis.schema import Summary
from accel_bench.report.formats import render, render_json


@pytest.fixture
def summary() -> Summary:
    return summary_of([LORA], make_rounds(LORA, STEADY))


def test_one_scenario_is_an_object_that_reads_back_to_the_same_summary(summary):
    text = render([summary], "json")
    assert isinstance(json.loads(text), dict)
    assert Summary.model_validate_json(text) == summary


def test_several_scenarios_are_a_list(summary):
    document = json.loads(render([summary, summary], "json"))
    assert [entry["scenario"] for entry in document] == ["peft", "peft"]


def test_no_scenario_is_an_empty_list():
    assert json.loads(render([], "json")) == []


def test_what_is_missing_is_null_and_not_left_out():
    summary = summary_of([LORA], [], skipped={"lora": ["needs a GPU"]})
    row = json.loads(render([summary], "json"))["experiments"][0]
    assert row["tokens_per_second"] is None
    assert row["status"] == "skipped"


def test_a_number_that_is_not_finite_becomes_null(summary):
    odd = summary.model_copy(update={"noise": (math.nan,)})
    for document in ([odd], {"noise": math.inf}, [{"noise": -math.inf}]):
        text = render_json(document)
        assert "NaN" not in text
        assert "Infinity" not in text
        assert "null" in text
