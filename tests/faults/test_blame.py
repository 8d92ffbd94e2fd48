"""Every ending names the plugin whose hook it was, and the same thing ends with one status."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from faults.program import Finished, Program, null_scenario

LABEL = "plugin 'faulty' (accel-bench-faulty)"


class Case(NamedTuple):
    """What a hook does, and how its run must end."""

    hook: str
    fault: str
    status: str
    reason: str
    value: Any = None


CASES = {
    "refuses": Case("load_model", "refuse", "plugin_error", "failed in load_model: not on purpose"),
    "raises": Case("load_model", "broken", "plugin_error", "failed in load_model: ValueError: br"),
    "raises-half-a-character": Case(
        "load_model", "half_a_character", "plugin_error", r"in load_model: ValueError: \ud83d"
    ),
    "shows-half-a-character": Case(
        "report_evidence", "half_a_character", "plugin_error", r"shown holds half a character", 1
    ),
    "segfault": Case(
        "start_metrics", "segfault", "crashed", f"SIGSEGV in warm-up of {LABEL} after 2 steps"
    ),
    "vanishes": Case("load_model", "vanish", "failed", f"exit 4 in load_model of {LABEL} after 0"),
    "model-text": Case("load_model", "return", "plugin_error", "in load_model: returned str", "m"),
    "accelerated-number": Case(
        "accelerate_model", "return", "plugin_error", "failed in accelerate_model: returned 5", 5
    ),
    "wrapped-list": Case(
        "parallelize_model", "return", "plugin_error", "parallelize_model: returned list", []
    ),
    "optimizer-none": Case("build_optimizer", "return", "plugin_error", "returned NoneType where"),
    "batches-list": Case(
        "build_batches", "return", "plugin_error", "build_batches: returned list where an it", [1]
    ),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, site: Any) -> Finished:
    """The program after it has run all of them."""
    stacks: dict[str, Any] = {"baseline": []}
    for name, case in CASES.items():
        use = {"use": "faulty", "hook": case.hook, "fault": case.fault, "value": case.value}
        stacks[name] = [use, "witness"]
    program = Program(tmp_path_factory.mktemp("blame"), site)
    return program.run(null_scenario(stacks), "--quiet")


@pytest.mark.parametrize("stack", CASES)
def test_the_reason_names_plugin_distribution_and_hook(finished: Finished, stack: str) -> None:
    case, row = CASES[stack], finished.result(stack)
    assert row.status.value == case.status
    (reason,) = row.reasons
    assert LABEL in reason
    assert case.reason in reason
