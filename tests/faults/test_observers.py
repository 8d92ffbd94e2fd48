"""What watches ranks from the parent always comes to its end, and is blamed for what it breaks."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from faults.program import Finished, Program, null_scenario, wait_for, write_scenario

from accel_bench.result import Result, Status

BLAMED = "plugin 'faulty' (accel-bench-faulty) failed in observe_ranks: "


def observing(fault: str, hook: str, value: Any = None) -> list[Any]:
    """A stack whose observer breaks, before one that is sound."""
    return [{"use": "faulty", "fault": fault, "hook": hook, "value": value}, "witness"]


BROKEN = {
    "start-raises": (observing("broken", "observe_ranks"), "ValueError: broken on purpose"),
    "start-exits": (observing("leave", "observe_ranks"), "SystemExit: 3"),
    "start-text": (observing("return", "observe_ranks", "an eye"), "returned str"),
    "finish-raises": (observing("broken", "finish"), "ValueError: broken on purpose"),
    "finish-exits": (observing("leave", "finish"), "SystemExit: 3"),
    "finish-none": (observing("return", "finish"), "returned NoneType"),
    "finish-text": (observing("return", "finish", "a lot"), "returned list"),
    "finish-numbers": (observing("return", "finish", [1, 2]), "returned list"),
}

SOUND = {
    "killed": [{"use": "faulty", "fault": "kill"}, "witness"],
    "broken": [{"use": "faulty", "fault": "broken"}, "witness"],
    "timeout": [{"use": "faulty", "fault": "sleep"}, "witness"],
    "last": ["witness"],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, site: Any) -> Finished:
    """The program after it has run all of them."""
    program = Program(tmp_path_factory.mktemp("observers"), site)
    broken = {name: stack for name, (stack, _) in BROKEN.items()}
    scenario = null_scenario({"baseline": [], **broken, **SOUND})
    return program.run(scenario, "--quiet", "--format", "json", "--timeout", "10")


def seen(finished: Finished, row: Result) -> str:
    """What the witness wrote down."""
    path = finished.program.results_folder / row.folder / "observed"
    return path.read_text(encoding="utf8") if path.exists() else "nothing"


@pytest.mark.parametrize("stack", BROKEN)
def test_an_observer_is_blamed_for_what_it_does_wrong(finished: Finished, stack: str) -> None:
    row = finished.result(stack)
    assert row.status is Status.PLUGIN_ERROR
    assert row.reasons[0].startswith(BLAMED + BROKEN[stack][1])


@pytest.mark.parametrize("stack", [name for name in BROKEN if name.startswith("finish")])
def test_a_broken_end_robs_no_other_observer_of_its_own_and_keeps_the_window(
    finished: Finished, stack: str
) -> None:
    row = finished.result(stack)
    assert seen(finished, row) == "ranks [0]"
    assert [metric.name for metric in row.metrics] == ["seen"]
    assert row.ranks[0].window is not None


@pytest.mark.parametrize(
    ("stack", "status", "ranks"),
    [
        ("killed", Status.KILLED, []),
        ("broken", Status.FAILED, [0]),
        ("timeout", Status.HUNG, [0]),
        ("last", Status.OK, [0]),
    ],
)
def test_an_observer_comes_to_its_end_whatever_became_of_the_ranks(
    finished: Finished, stack: str, status: Status, ranks: list[int]
) -> None:
    row = finished.result(stack)
    assert row.status is status
    assert seen(finished, row) == f"ranks {ranks}"
    assert [(metric.name, metric.value) for metric in row.metrics] == [("seen", len(ranks))]


def test_ranks_whose_observer_could_not_start_are_ended(finished: Finished) -> None:
    assert finished.program.left_behind() == []
    for stack in ("start-raises", "start-exits", "start-text"):
        assert finished.result(stack).exits[0] in ("SIGTERM", "exit 0", "exit 1")


def test_every_row_says_what_the_machine_did_before_and_after(finished: Finished) -> None:
    for row in finished.results:
        assert row.state_before is not None
        assert row.state_after is not None
        assert row.state_after.monotonic_seconds > row.state_before.monotonic_seconds
        assert row.state_before.gpus == ()
        before, after = row.state_before.cpu, row.state_after.cpu
        # A rank that was ended at once has used less than the kernel counts.
        assert after.own_seconds > before.own_seconds or row.status is Status.PLUGIN_ERROR


def test_ctrl_c_brings_an_observer_to_its_end_too(program: Program) -> None:
    stacks = {"baseline": [{"use": "faulty", "fault": "sleep"}, "witness"]}
    path = write_scenario(program.folder / "scenario.yaml", null_scenario(stacks))
    process = program.start("run", str(path), "--quiet")
    pages = "runs/*/*/*.heartbeat"
    assert wait_for(
        lambda: any(page.read_bytes()[:1] == b"\x03" for page in program.results_folder.glob(pages))
    )
    process.send_signal(signal.SIGINT)
    finished = program.finish(process)
    row = finished.result("baseline")
    assert row.status is Status.INTERRUPTED
    assert seen(finished, row) == "ranks [0]"
    assert row.state_after is None
