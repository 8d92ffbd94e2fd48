"""Whatever a worker does, its attempt ends as one row that says what happened, and others go on.

One program runs all faults, each as a stack of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import pytest
from faults.program import Finished, Program, null_scenario

from accel_bench.plugins.validation import hook_arguments
from accel_bench.result import Status

pytestmark = pytest.mark.long

TWO_RANKS = {"resources.devices": 2, "parallel": "none"}
OTHER_HOOKS = ("check_scenario", "launch_ranks", "observe_ranks", "prepare_experiment")
WORKER_HOOKS = [hook for hook in hook_arguments() if hook not in OTHER_HOOKS]
USUAL_HOOKS = ("load_model", "start_metrics", "report_evidence", "close_run")
PHASE_OF = {"start_metrics": "warm-up"}
"""Phases that are not called as the hook."""

FOR_RELEASES = {
    *(f"raise-{hook}" for hook in WORKER_HOOKS if hook not in USUAL_HOOKS),
    *("dataset-none", "metrics-number", "metrics-text", "evidence-list", "launch-text"),
    *("metrics-list", "evidence-object", "launch-none", "oom-cause", "oom-warm-up", "sys-exit"),
    *("kill-warm-up", "abort", "exit-in-hook"),
}
"""Stacks that end as another one does, in another hook, phase or way."""


def each(stacks: Iterable[str]) -> list[Any]:
    """Return stacks as parameters, some of them only for releases."""
    return [
        pytest.param(one, marks=pytest.mark.release if one in FOR_RELEASES else ())
        for one in stacks
    ]


class Case(NamedTuple):
    """One fault and how it must end."""

    options: dict[str, Any]
    status: str
    reason: str = ""
    phase: str = "window"
    ranks: int = 1


CASES = {
    "oom": Case({"fault": "oom"}, "oom", "out of memory in window: "),
    "oom-alias": Case({"fault": "oom_alias"}, "oom", "in window: asked 2.50 GiB, 1.25 GiB free"),
    "oom-cause": Case({"fault": "oom_cause"}, "oom", "the kernel could not be built"),
    "oom-warm-up": Case({"fault": "oom", "at_step": 0}, "oom", "memory in warm-up", "warm-up"),
    "oom-load": Case({"fault": "oom", "hook": "load_model"}, "oom", "", "load_model"),
    "oom-rank-1": Case({"fault": "oom_alias", "rank": 1}, "oom", "rank 1: ", ranks=2),
    "exception": Case({"fault": "broken"}, "failed", "ValueError: broken on purpose"),
    "sys-exit": Case({"fault": "leave"}, "failed", "SystemExit: 3"),
    "exit": Case({"fault": "vanish"}, "failed", "ended by exit 4 in window after 3 steps"),
    "exit-rank-1": Case({"fault": "vanish", "rank": 1}, "failed", "rank 1: ended by", ranks=2),
    "exit-other-waits": Case(
        {"fault": "broken", "rank": 1, "others": "sleep"}, "failed", "rank 1: ValueError", ranks=2
    ),
    "abort": Case({"fault": "abort"}, "crashed", "ended by SIGABRT in window after 3 steps"),
    "segfault": Case({"fault": "segfault"}, "crashed", "ended by SIGSEGV"),
    "kill": Case({"fault": "kill"}, "killed", "ended by SIGKILL in window after 3 steps"),
    "sigint": Case({"fault": "interrupt"}, "killed", "ended by SIGINT from outside in window"),
    "kill-warm-up": Case(
        {"fault": "kill", "at_step": 1}, "killed", "in warm-up after 1 step", "warm-up"
    ),
    "grandchild": Case({"fault": "grandchild"}, "ok", phase=""),
    "setsid": Case({"fault": "setsid"}, "ok", phase=""),
    "runaway": Case({"fault": "runaway"}, "ok", phase=""),
    **{
        f"raise-{hook}": Case(
            {"fault": "broken", "hook": hook},
            "plugin_error",
            f"plugin 'faulty' (accel-bench-faulty) failed in {hook}: ValueError: broken on purpose",
            PHASE_OF.get(hook, hook),
        )
        for hook in WORKER_HOOKS
    },
    "launch-raises": Case(
        {"fault": "broken", "hook": "launch_ranks"}, "plugin_error", "failed in launch_ranks", ""
    ),
    "exit-in-hook": Case(
        {"fault": "leave", "hook": "load_data"}, "plugin_error", "SystemExit: 3", "load_data"
    ),
}

WRONG = {
    "model-none": ("load_model", None),
    "dataset-none": ("load_data", None),
    "engine-text": ("build_engine", "no engine"),
    "metrics-number": ("finish_metrics", 5),
    "metrics-text": ("finish_metrics", "fast"),
    "metrics-list": ("finish_metrics", ["fast"]),
    "evidence-list": ("report_evidence", ["acted"]),
    "evidence-object": ("report_evidence", "object"),
    "launch-none": ("launch_ranks", None),
    "launch-text": ("launch_ranks", "started"),
}
"""Hooks, and what they return that is not what is expected."""


def stacks(left_out: Iterable[str] = ()) -> dict[str, Any]:
    """A stack for each case, between two that are sound."""
    found: dict[str, Any] = {"baseline": []}
    for name, case in CASES.items():
        use = [{"use": "faulty", **case.options}, "witness"]
        found[name] = {"set": TWO_RANKS if case.ranks == 2 else {}, "use": use}
    for name, (hook, value) in WRONG.items():
        use = {"use": "faulty", "fault": "return", "hook": hook, "value": value}
        found[name] = {"use": [use]}
    for name, hook in (("prepare", "prepare_experiment"), ("prepared", "step")):
        fault = "broken" if name == "prepare" else "none"
        found[name] = {"use": [{"use": "faulty-preparation", "fault": fault, "hook": hook}]}
    kept = {name: stack for name, stack in found.items() if name not in left_out}
    return {**kept, "last": {"use": ["witness"]}}


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The stacks that are run."""
    return stacks(() if "release" in request.config.option.markexpr else FOR_RELEASES)


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, site: Any, chosen: dict[str, Any]
) -> Finished:
    """The program after it has run them."""
    program = Program(tmp_path_factory.mktemp("endings"), site)
    adapter = {"use": "none"}
    words = ("--quiet", "--oversubscribe", "--format", "json")
    return program.run(null_scenario(chosen, adapter=adapter), *words)


@pytest.mark.parametrize("stack", each(CASES))
def test_the_row_says_how_it_ended_and_where(finished: Finished, stack: str) -> None:
    case, row = CASES[stack], finished.result(stack)
    assert row.status.value == case.status
    assert row.phase == case.phase
    assert case.reason in " ".join(row.reasons)


@pytest.mark.parametrize("stack", each(name for name, case in CASES.items() if case.status != "ok"))
def test_the_end_of_the_guilty_rank_s_log_is_kept(finished: Finished, stack: str) -> None:
    fault, tail = CASES[stack].options["fault"], finished.result(stack).log_tail
    # A launcher acts in the program, before any log is there.
    assert (f"about to {fault}\n" in tail) == (stack != "launch-raises")


def test_a_sound_run_keeps_no_log_in_its_row(finished: Finished) -> None:
    assert finished.result("grandchild").log_tail == ""
    assert "about to grandchild" in finished.log("grandchild")


@pytest.mark.parametrize("stack", each(WRONG))
def test_a_wrong_value_is_blamed_on_the_plugin_that_returned_it(
    finished: Finished, stack: str
) -> None:
    row, hook = finished.result(stack), WRONG[stack][0]
    assert row.status is Status.PLUGIN_ERROR
    assert f"plugin 'faulty' (accel-bench-faulty) failed in {hook}: returned" in row.reasons[0]


@pytest.mark.parametrize("stack", ["baseline", "last", "prepared"])
def test_sound_stacks_are_not_affected(finished: Finished, stack: str) -> None:
    assert finished.result(stack).status is Status.OK
    assert finished.result(stack).reasons == ()


def test_every_stack_has_one_row_and_nothing_else_has(
    finished: Finished, chosen: dict[str, Any]
) -> None:
    names = sorted(row.experiment.stack.name for row in finished.results)
    assert names == sorted(chosen)


def test_the_program_exits_1_and_prints_every_stack(finished: Finished) -> None:
    assert finished.code == 1
    assert "Traceback" not in finished.err
    rows = {row["stack"]: row["status"] for row in finished.document["experiments"]}
    assert rows == {row.experiment.stack.name: row.status.value for row in finished.results}


def test_no_process_is_left_behind(finished: Finished) -> None:
    assert finished.program.left_behind() == []


@pytest.mark.parametrize("stack", each(["oom-alias", "oom-cause"]))
def test_bytes_asked_and_free_are_kept(finished: Finished, stack: str) -> None:
    error = finished.result(stack).ranks[0].error
    assert error.bytes_asked == 2.5 * 2**30
    assert error.bytes_free == 1.25 * 2**30


def test_the_rank_that_ran_to_its_end_keeps_its_window(finished: Finished) -> None:
    sound, guilty = finished.result("oom-rank-1").ranks
    assert sound.status is Status.OK
    assert sound.window is not None
    assert guilty.status is Status.OOM
    assert guilty.window is None


def test_a_rank_that_waits_for_a_lost_one_is_ended_and_leaves_its_stack(
    finished: Finished,
) -> None:
    row = finished.result("exit-other-waits")
    assert [rank.status.value for rank in row.ranks] == ["interrupted", "failed"]
    assert "in sleep" in finished.log("exit-other-waits", rank=0)


@pytest.mark.parametrize(
    ("stack", "words"),
    [
        ("segfault", "Segmentation fault"),
        pytest.param("abort", "Aborted", marks=pytest.mark.release),
    ],
)
def test_a_crash_leaves_its_stack_in_the_log(finished: Finished, stack: str, words: str) -> None:
    assert words in finished.log(stack)
    assert f"in {stack}" in finished.log(stack)
    assert words in finished.result(stack).log_tail


@pytest.mark.parametrize("stack", each(f"raise-{hook}" for hook in WORKER_HOOKS))
def test_other_plugins_are_closed_when_a_hook_fails(finished: Finished, stack: str) -> None:
    folder = finished.program.results_folder / finished.result(stack).folder
    assert (folder / "closed-by-rank0").exists()


def test_the_error_of_a_hook_names_plugin_distribution_and_hook(finished: Finished) -> None:
    error = finished.result("raise-load_model").ranks[0].error
    assert error.plugin == "faulty"
    assert error.distribution == "accel-bench-faulty"
    assert error.hook == "load_model"
    assert "broken on purpose" in error.traceback


def test_what_was_measured_before_a_late_hook_failed_is_kept(finished: Finished) -> None:
    window = finished.result("raise-report_evidence").ranks[0].window
    assert window is not None
    assert [sample.step for sample in window.samples] == [2, 3, 4, 5]


def test_a_failed_preparation_is_the_row_of_its_experiment(finished: Finished) -> None:
    row = finished.result("prepare")
    assert row.status is Status.PLUGIN_ERROR
    assert row.phase == "prepare_experiment"
    assert "failed in prepare_experiment" in row.reasons[0]


def test_exits_are_named(finished: Finished) -> None:
    found = {name: finished.result(name).exits for name in ("kill", "segfault", "exit-rank-1")}
    assert found == {
        "kill": ("SIGKILL",),
        "segfault": ("SIGSEGV",),
        "exit-rank-1": ("exit 0", "exit 4"),
    }
