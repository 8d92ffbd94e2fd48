"""The table of rules: the page on verdicts has it too, and the first rule that holds counts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import limit, make_experiment, make_result

from accel_bench.analysis.checks.convergence import SMOOTHING_STEPS
from accel_bench.analysis.checks.verdict_rules import RULES, Rule, limit_of
from accel_bench.analysis.wording import percent
from accel_bench.plugins.active import MOST_BY_SENSITIVITY
from accel_bench.result import Result

PAGE = Path(__file__).parents[3] / "docs/verdicts.md"


def rows() -> list[list[str]]:
    """The cells of the page's table of rules, its head left out."""
    section = PAGE.read_text(encoding="utf8").split("## Rules\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def shown(rule: Rule) -> tuple[str, str, str]:
    """A rule's name, limit and reason as the page has them."""
    name = rule.figure if rule.case == "always" else f"{rule.figure}, {rule.case}"
    factor = f"{rule.limit:g} times"
    share = "any" if math.isinf(rule.limit) else percent(rule.limit)
    return name, factor if 1 < rule.limit < math.inf else share, rule.why


def test_the_page_on_verdicts_has_the_table_of_rules() -> None:
    by_name = {name: (limit, why) for name, _, limit, why, _ in rows()}
    sensitivity, _ = by_name.pop("sensitivity of a task")
    assert sensitivity == percent(MOST_BY_SENSITIVITY)
    assert [(name, *rest) for name, rest in by_name.items()] == [shown(rule) for rule in RULES]
    assert len(rows()) == len(by_name) + 1


def test_each_rule_of_the_page_has_a_condition_and_evidence() -> None:
    assert all(condition and evidence for _, condition, _, _, evidence in rows())


def test_the_page_on_verdicts_has_the_smoothing_and_the_limits_of_declarations() -> None:
    page = PAGE.read_text(encoding="utf8")
    assert f"means of {SMOOTHING_STEPS} steps" in page
    limits = (percent(limit(f"declared {of}", "always")) for of in ("loss", "update"))
    assert "tolerance of {} for a loss, and up to {} of an update (".format(*limits) in page


def run(**scenario: Any) -> Result:
    return make_result(make_experiment(scenario=scenario))


@pytest.mark.parametrize(
    ("changes", "case"),
    [
        ({}, "float32"),
        ({"train": {"matmul_precision": "high"}}, "coarse products"),
        ({"train": {"matmul_precision": "high", "precision": "bf16-autocast"}}, "16 bits"),
    ],
)
def test_the_first_rule_that_holds_counts(changes: dict[str, Any], case: str) -> None:
    assert limit_of("update", (run(), run(**changes))) == limit("update", case)


def test_a_figure_that_no_rule_limits_may_be_anything() -> None:
    assert limit_of("size of experts", (run(), run())) == math.inf


def test_a_figure_without_a_rule_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="no rule on 'sizes'"):
        limit_of("sizes", (run(), run()))
