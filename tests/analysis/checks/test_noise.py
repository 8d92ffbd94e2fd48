"""Devices degrade a run by what they are; load of the host counts against the session's own."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_factory import (
    make_experiment,
    make_rank,
    make_ranks,
    make_result,
    make_summary,
)

from accel_bench.analysis.checks.audit import Broken, marked_degraded
from accel_bench.analysis.checks.noise import concerns_work, device_reasons, load_notes, load_of
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.quantity import compared_by
from accel_bench.analysis.schema import Summary
from accel_bench.machine.state import CPUState, GPUProcess, GPUState, MachineState, limits_in
from accel_bench.report.formats import render
from accel_bench.report.views.run_table import stacks_report
from accel_bench.result import Node, Result
from accel_bench.worker.failure import reasons_of

CUDA = make_rank(device={"type": "cuda", "name": "a GPU", "uuid": "aaaa"})
CPU = make_rank()


def cpu_at(total: float, busy: float = 0.0, stolen: float = 0.0, own: float = 0.0) -> CPUState:
    """Counters of the host."""
    return CPUState(
        total_seconds=total,
        busy_seconds=busy,
        stolen_seconds=stolen,
        own_seconds=own,
        memory_available_bytes=1,
        swap_used_bytes=0,
    )


def state(seconds: float = 0.0, gpus: int = 1, **gpu: Any) -> MachineState:
    """A machine with one device, or none."""
    devices = tuple(GPUState(uuid="GPU-AAAA", **gpu) for _ in range(gpus))
    return MachineState(monotonic_seconds=seconds, cpu=cpu_at(0.0), gpus=devices)


def run(number: int, busy: float, stolen: float = 0.0, own: float = 20.0) -> Result:
    """A run of 100 CPU seconds, of which we used 20."""
    result = make_result(make_experiment(f"s{number % 2}"), round=number // 2)
    before = MachineState(monotonic_seconds=0.0, cpu=cpu_at(1000.0, 500.0, 7.0, 3.0))
    spent = cpu_at(1100.0, 500.0 + busy, 7.0 + stolen, 3.0 + own)
    after = MachineState(monotonic_seconds=50.0, cpu=spent)
    return result.model_copy(update={"state_before": before, "state_after": after})


def test_a_quiet_device_gives_no_reason() -> None:
    before = state(0.0, clock_limits=("gpu_idle",), ecc_uncorrected=2, thermal_limited_seconds=9.0)
    after = state(60.0, clock_limits=("sw_power_cap",), ecc_uncorrected=2)
    assert device_reasons(before, after, [CUDA]) == ()


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            {"other_processes": (GPUProcess(pid=7, name="python"),)},
            {"other_processes": (GPUProcess(pid=7, name="python", memory_bytes=5),)},
            "other_process: process 7 (python) computes on GPU-AAAA too",
        ),
        (
            {},
            {"other_processes": (GPUProcess(pid=7),)},
            "other_process: process 7 (name not known) computes on GPU-AAAA too",
        ),
        (
            {"clock_limits": ("gpu_idle", "hw_thermal_slowdown")},
            {},
            "throttled: hw_thermal_slowdown on GPU-AAAA",
        ),
        (
            {"thermal_limited_seconds": 1.0},
            {"thermal_limited_seconds": 3.5},
            "throttled: heat held the clocks of GPU-AAAA down for 2.5 s",
        ),
        (
            {"ecc_uncorrected": 1},
            {"ecc_uncorrected": 2},
            "ecc: 1 memory errors of GPU-AAAA could not be corrected",
        ),
        (
            {"remap_pending": True},
            {"remap_pending": True},
            "ecc: bad rows of the memory of GPU-AAAA are not replaced yet",
        ),
        ({"problems": ("it is lost",)}, {}, "nvml: it is lost"),
    ],
)
def test_a_bad_reading_is_one_reason(
    before: dict[str, Any], after: dict[str, Any], reason: str
) -> None:
    pair = state(0.0, **before), state(60.0, **after)
    assert device_reasons(*pair, [CUDA, CUDA]) == (reason,)
    assert device_reasons(*pair, [CPU]) == ()
    assert not concerns_work(reason)


def test_a_moment_of_heat_is_nothing_to_speak_of() -> None:
    before, after = state(0.0, thermal_limited_seconds=1.0), state(60.0)
    after = state(60.0, thermal_limited_seconds=1.5)
    assert device_reasons(before, after, [CUDA]) == ()


def test_a_device_that_has_gone_is_a_reason() -> None:
    reasons = device_reasons(state(0.0), state(60.0, gpus=0), [CUDA])
    assert reasons == ("nvml: the state of device aaaa is not known: NVML does not list it",)


def test_bits_are_decoded_into_words_and_unknown_ones_kept() -> None:
    assert limits_in(0) == ()
    assert limits_in(0x044) == ("sw_power_cap", "hw_thermal_slowdown")
    assert limits_in(0x8000) == ("limit_0x8000",)


def test_what_we_used_ourselves_is_not_other_work() -> None:
    load = load_of(run(0, busy=25.0, stolen=4.0))
    assert load is not None
    assert load.others == pytest.approx(0.05)
    assert load.stolen == pytest.approx(0.04)


def test_load_that_is_the_same_in_all_runs_is_told_once_as_a_level() -> None:
    assert load_notes([run(number, busy=95.0, stolen=5.0) for number in range(6)]) == (
        "the hypervisor took 5 % of the CPUs during these runs: read ratios only",
        "other programs used 75 % of the CPUs during these runs: close them, or read ratios only",
    )


def test_reasons_of_figures_and_of_what_came_later_concern_no_work() -> None:
    broken = Broken(invariant="phases", figures="1 and 2")
    harmless = [
        *marked_degraded(make_result(ranks=[CPU]), [broken]).reasons,
        *reasons_of(RuntimeError("no room"), "observe_steps"),
        "the checkpoint was not written: No space left on device",
    ]
    assert not [reason for reason in harmless if concerns_work(reason)]
    assert concerns_work("28 of 29 linear modules compute in bfloat16, the scenario says float32")


def test_other_work_opens_no_verdict_on_bytes() -> None:
    """Memory is what it is, whatever else runs beside one of the two stacks."""
    runs = [run(number, 65.0 if number % 2 else 25.0) for number in range(12)]
    less = (make_rank(step_seconds=(0.05, 0.05), peak=500),)
    both = [one.model_copy(update={"ranks": less}) if n % 2 else one for n, one in enumerate(runs)]
    for name, verdict in (("peak_memory_bytes", "better"), (None, "inconclusive")):
        named = [compared_by(one, name) for one in both]
        found = make_summary([one.experiment for one in named[:2]], named, 6, baseline="s0")
        assert found.experiments[1].verdict == verdict


@pytest.mark.parametrize(("base", "stack"), [(65.0, 25.0), (25.0, 65.0)])
def test_nothing_is_faster_where_other_work_ran_beside_one_of_the_two(
    base: float, stack: float
) -> None:
    def summary_of(*busy: float, **changes: Any) -> Summary:
        runs = [run(number, busy[number % 2]) for number in range(12)]
        fast = make_ranks(runs[1].experiment, 0.05)
        both = [
            one.model_copy(update={"ranks": tuple(fast), **changes}) if n % 2 else one
            for n, one in enumerate(runs)
        ]
        return make_summary([run.experiment for run in runs[:2]], both, 6, baseline="s0")

    row = summary_of(base, stack).experiments[1]
    assert (row.verdict, row.rounds_needed) == ("inconclusive", None)
    used = f"{base - 20:.0f} % of the CPUs beside the baseline and {stack - 20:.0f} % beside it"
    said = conclusion(summary_of(base, stack))
    assert said.startswith(
        "s1 (2.000 to 2.000 times as fast) may be faster than s0: other programs"
    )
    assert used in said and "times as fast" in said
    assert summary_of(base, base).experiments[1].verdict_word == "faster"
    agents = (Node.model_construct(rank=0),)
    assert summary_of(base, stack, nodes=agents).experiments[1].verdict_word == "faster"


def test_an_idle_machine_has_no_level_worth_a_word() -> None:
    assert load_notes([run(number, busy=29.0, stolen=1.0) for number in range(6)]) == ()


def test_one_run_has_a_level_too() -> None:
    (note,) = load_notes([run(0, busy=40.0)])
    assert note.startswith("other programs used 20 % of the CPUs during these runs")


def test_the_level_stands_in_table_and_json() -> None:
    runs = [run(number, busy=95.0) for number in range(12)]
    experiments = [make_experiment("s0"), make_experiment("s1")]
    summary = make_summary(experiments, runs, baseline="s0")
    told = "other programs used 75 % of the CPUs during these runs: close them, or read ratios only"
    for form in ("table", "json", "markdown"):
        assert told in " ".join(render([summary], form).split())


def test_the_run_that_stands_out_is_named_once_with_the_median() -> None:
    runs = [run(number, busy=25.0) for number in range(5)]
    notes = load_notes([*runs, run(5, busy=70.0)])
    assert notes == (
        "other work took up to 50 % of the CPUs during s1 (round 3); the session's median is 5 %",
    )


def test_stolen_time_is_a_note_of_its_own() -> None:
    runs = [run(number, busy=20.0, stolen=1.0) for number in range(4)]
    notes = load_notes([*runs, run(4, busy=20.0, stolen=9.0)])
    assert notes == (
        "the hypervisor took up to 9 % of the CPUs during s0 (round 3); "
        "the session's median is 1 %",
    )


def test_two_runs_have_no_median_to_stand_out_from() -> None:
    assert load_notes([run(0, busy=20.0), run(1, busy=35.0)]) == ()


def test_runs_of_before_states_were_stored_have_no_load() -> None:
    assert load_of(make_result()) is None
    assert load_notes([make_result(round=number) for number in range(5)]) == ()


def test_the_note_stands_under_the_table_and_leaves_the_status_alone() -> None:
    runs = [run(number, busy=25.0) for number in range(9)] + [run(9, busy=70.0)]
    experiments = [make_experiment("s0"), make_experiment("s1")]
    summary = make_summary(experiments, runs, baseline="s0")
    assert [row.status.value for row in summary.experiments] == ["ok", "ok"]
    (section,) = stacks_report([summary]).sections
    assert [note for note in section.notes if note.startswith("load: ")] == [
        f"load: {summary.noise[0]}"
    ]
