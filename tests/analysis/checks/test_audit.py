"""Every invariant on a row that keeps it and on rows that break it, one figure at a time."""

from __future__ import annotations

import pytest
from analysis_factory import (
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
)

from accel_bench.analysis.checks.audit import (
    INVARIANTS,
    audit,
    audit_failures,
    utilization_figures,
    with_audit,
)
from accel_bench.effective import EffectiveConfiguration
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.result import Metric, PhaseSplit, Result, SeenWindow, Status

TWO = make_experiment(scenario={"resources": {"device": "cpu", "devices": 2}})
ON_GPU = make_experiment(scenario={"resources": {"device": "cuda"}})


def with_window(result: Result, **changes) -> Result:
    """The same row with another window on rank 0."""
    rank = result.ranks[0]
    changed = rank.model_copy(update={"window": rank.window.model_copy(update=changes)})
    return result.model_copy(update={"ranks": (changed, *result.ranks[1:])})


def with_steps(result: Result, *changes: dict) -> Result:
    """The same row, with changed steps in the window of rank 0."""
    samples = result.ranks[0].window.samples
    steps = zip(samples, changes, strict=True)
    return with_window(result, samples=tuple(s.model_copy(update=c) for s, c in steps))


def with_rank(result: Result, **changes) -> Result:
    """The same row with a changed rank 0."""
    rank = result.ranks[0].model_copy(update=changes)
    return result.model_copy(update={"ranks": (rank, *result.ranks[1:])})


def with_memory(allocated=None, reserved=None, nvml=None) -> Result:
    """A row with these peaks; NVML's comes from outside."""
    result = make_result(ranks=[make_rank()])
    inner = [("peak_memory", allocated, "allocated"), ("peak_reserved", reserved, "")]
    metrics = tuple(
        Metric(name=name, figure=name, value=value, unit="bytes", scope="rank", kind=kind)
        for name, value, kind in inner
    )
    facts = {"figure": "run_peak_driver", "unit": "bytes", "scope": "rank", "rank": 0}
    outer = Metric(name="nvml_peak_memory_bytes", value=nvml, **facts)
    return with_rank(result, metrics=metrics).model_copy(update={"metrics": (outer,)})


def broken(result: Result) -> list[str]:
    """Names of the invariants that the row breaks."""
    return [one.invariant for one in audit(result)]


def test_a_sound_row_breaks_nothing():
    assert audit(make_result()) == []
    assert audit(make_result(TWO, ranks=[make_rank(0), make_rank(1)])) == []


def test_processed_tokens_and_samples_give_the_sequence_length():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    assert broken(make_result(longer)) == ["sequence_length"]
    (found,) = audit(make_result(longer))
    assert found.figures == (
        "330 processed tokens in 3 samples, up to 110 in one; the sequence length is 220"
    )


def test_samples_of_different_lengths_may_be_shorter_but_never_longer():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    rank = make_rank().model_copy(update={"evidence": {}})
    shorter = {"processed_tokens": 105}
    assert audit(with_steps(make_result(longer, ranks=[rank]), shorter, {})) == []
    too_long = {"processed_tokens": 221}
    assert broken(with_steps(make_result(longer), too_long, {})) == ["sequence_length"]


def test_sounds_have_no_sequence_length():
    task = {"use": "ctc", "counts": "audio_samples"}
    experiment = make_experiment(scenario={"task": task, "data": {"sequence_length": 220}})
    assert audit(with_steps(make_result(experiment), {"processed_tokens": 16_000}, {})) == []


def test_steps_times_the_global_batch_are_the_samples():
    twice = {"sequences": 2, "processed_tokens": 220}
    result = with_steps(make_result(), twice, {})
    assert broken(result) == ["global_batch"]
    assert audit(result)[0].figures == "2 steps x global batch 1 = 2, but 3 samples"


def test_ranks_that_measured_different_numbers_of_steps_break_the_global_batch():
    ranks = [make_rank(0), make_rank(1, step_seconds=(0.1, 0.1, 0.1))]
    assert "global_batch" in broken(make_result(TWO, ranks=ranks))


@pytest.mark.parametrize(
    "counts", [{"real_tokens": 111}, {"supervised_tokens": 101}, {"supervised_tokens": -1}]
)
def test_no_token_is_supervised_that_is_not_real_nor_real_that_is_not_processed(counts):
    assert broken(with_steps(make_result(), {}, counts)) == ["token_counts"]


@pytest.mark.parametrize(("factor", "names"), [(1.015, []), (1.03, ["rate_times_time"])])
def test_rate_times_time_is_work_within_2_percent(factor, names):
    long = make_result(seconds=10.0)
    ended = long.ranks[0].window.started + 20.0 * factor
    assert broken(with_window(long, ended=ended)) == names


def test_a_short_window_may_lose_a_moment_to_the_scheduler():
    short = make_result(seconds=0.001)
    assert broken(with_window(short, ended=short.ranks[0].window.started + 0.04)) == []
    assert broken(with_window(short, ended=short.ranks[0].window.started + 0.1)) != []


def test_a_window_that_took_no_time_has_no_rate():
    result = make_result()
    found = audit(with_window(result, ended=result.ranks[0].window.started))
    assert [one.invariant for one in found] == ["rate_times_time"]


@pytest.mark.parametrize(("seconds", "names"), [(9.9, []), (9.5, ["device_clock"])])
def test_device_events_agree_with_the_wall_clock_within_2_percent(seconds, names):
    steps = {"device_seconds": seconds, "seconds": seconds}
    assert broken(with_steps(make_result(seconds=10.0), steps, steps)) == names


@pytest.mark.parametrize(
    ("at_least", "at_most", "figures"),
    [
        (0.0, None, []),
        (0.24, 0.15, []),
        (1.98, 2.5, ["at least 1.98 s by the parent's"]),
        (0.0, 0.1, ["at most 0.1 s by the parent's"]),
    ],
)
def test_the_parent_saw_the_window_last_as_long_as_the_rank_says(at_least, at_most, figures):
    seen = (SeenWindow(rank=0, at_least=at_least, at_most=at_most),)
    result = make_result().model_copy(update={"seen_windows": seen})
    assert [(one.invariant, one.figures) for one in audit(result)] == [
        ("parent_clock", f"the window took 0.2 s by the rank's clock, and {one}") for one in figures
    ]


def test_no_time_is_left_out_of_a_window_that_trains():
    result = make_result(seconds=10.0)
    window = result.ranks[0].window
    shorter = with_window(result, ended=window.ended + 5.0, left_out_seconds=5.0)
    (found,) = audit(shorter)
    assert found.figures == "5 s were left out of a window that trains"
    assert audit_failures(shorter) == (f"left_out: {found.figures}",)
    answering = make_experiment(scenario={"mode": "inference", "data": {}})
    answers = make_result(answering, ranks=shorter.ranks)
    assert "left_out" not in broken(answers)


@pytest.mark.parametrize(("seconds", "names"), [(0.29, []), (0.31, ["pace"])])
def test_steps_of_the_window_take_as_long_as_those_after_it(seconds, names):
    sound = make_result(seconds=0.1)
    after = tuple(
        sample.model_copy(update={"seconds": seconds}) for sample in sound.ranks[0].window.samples
    )
    row = with_rank(sound, steps_after=after)
    assert broken(row) == names
    assert all("median step took 0.1 s" in one and "0.31 s" in one for one in audit_failures(row))


def test_a_step_takes_time():
    # Both together take what the window took, but one of them ended before it began.
    result = with_steps(make_result(seconds=10.0), {"seconds": -1.0}, {"seconds": 21.0})
    assert broken(result) == ["order_statistics"]


@pytest.mark.parametrize(
    ("peaks", "said"),
    [
        ({"allocated": 5, "reserved": 6, "nvml": 7}, []),
        ({"allocated": 6, "reserved": 5, "nvml": 7}, ["5 bytes reserved, but 6 bytes allocated"]),
        ({"allocated": 5, "reserved": 6, "nvml": 4}, ["4 bytes by NVML, but 6 bytes reserved"]),
        ({"allocated": 5, "nvml": 4}, ["4 bytes by NVML, but 5 bytes allocated"]),
        ({"reserved": 6}, []),
    ],
)
def test_nvml_sees_at_least_what_is_reserved_and_that_at_least_what_is_allocated(peaks, said):
    assert [one.figures for one in audit(with_memory(**peaks))] == said


def test_resident_memory_of_the_host_is_not_held_against_that_of_a_device():
    rss = Metric(
        name="peak_memory_bytes",
        figure="peak_memory",
        value=9,
        unit="bytes",
        scope="rank",
        kind="rss",
    )
    reserved = Metric(
        name="peak_reserved_bytes", figure="peak_reserved", value=5, unit="bytes", scope="rank"
    )
    assert audit(with_rank(make_result(), metrics=(rss, reserved))) == []


def test_devices_used_are_devices_asked():
    same = {"type": "cuda", "uuid": "a"}
    gpus = make_experiment(scenario={"resources": {"device": "cuda", "devices": 2}})
    ranks = [make_rank(0, device=same), make_rank(1, device=same)]
    found = audit(make_result(gpus, ranks=ranks))
    assert [(one.invariant, one.figures) for one in found] == [
        ("devices", "1 devices used, 2 asked")
    ]


def test_a_run_on_a_cpu_is_none_on_the_gpu_that_was_asked():
    assert broken(make_result(ON_GPU)) == ["devices"]


@pytest.mark.parametrize(
    ("asked", "used", "names"),
    [("rocm", "cuda", []), ("rocm", "cpu", ["devices"]), ("acme", "acme-torch", [])],
)
def test_a_device_is_held_against_the_type_that_torch_knows_it_by(asked, used, names):
    experiment = make_experiment(scenario={"resources": {"device": asked}})
    ranks = [make_rank(device={"type": used, "name": "AMD Instinct MI300X"})]
    assert broken(make_result(experiment, ranks=ranks)) == names


@pytest.mark.parametrize(("forward", "names"), [(0.52, []), (0.6, ["phases"])])
def test_phases_add_up_to_the_step_within_5_percent(forward, names):
    split = PhaseSplit(steps=3, step_seconds=1.0, seconds={"forward": forward, "backward": 0.5})
    assert broken(with_rank(make_result(), phases=split)) == names


@pytest.mark.parametrize("mfu", [0.0, -0.1, 1.01, float("nan"), float("inf")])
def test_an_mfu_beyond_its_bounds_is_said(mfu):
    (said,) = utilization_figures(mfu)
    assert said.startswith("an MFU of ")


def test_an_mfu_within_its_bounds_is_not():
    assert [*utilization_figures(0.4), *utilization_figures(1.0)] == []


@pytest.mark.parametrize(("features", "names"), [(1000, []), (10**6, ["model_utilization"])])
def test_a_row_that_claims_more_than_its_device_can_compute_is_found(features, names):
    # 100 tokens in 0.1 s: 6 x 10^12 FLOP for each are 6 x 10^15 FLOP/s, six times what an H100 can.
    result = make_result(
        ON_GPU, ranks=[make_rank(device={"type": "cuda", "name": "NVIDIA H100 80GB HBM3"})]
    )
    work = Workload(matmuls=(Matmul(name="layer", rows=features, columns=features),))
    effective = EffectiveConfiguration(matmul_dtype="bfloat16")
    assert broken(with_rank(result, workload=work, effective=effective)) == names
    unknown = EffectiveConfiguration(matmul_dtype="int3")
    assert broken(with_rank(result, workload=work, effective=unknown)) == []


def test_a_row_of_a_run_that_did_not_complete_is_not_audited():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    assert audit(make_result(longer, status=Status.OOM, ranks=[make_rank()])) == []


def test_a_broken_invariant_names_its_rank_where_there_are_several():
    ranks = [make_rank(0), make_rank(1)]
    result = make_result(TWO, ranks=ranks)
    result = with_steps(result, {"real_tokens": 111}, {})
    assert [one.figures for one in audit(result)] == [
        "rank 0: step 1: 110 processed, 111 real, 99 supervised tokens"
    ]


def test_a_marked_row_is_degraded_and_keeps_its_own_reasons():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    row = with_audit(make_result(longer, status=Status.DEGRADED, reasons=["the clock was low"]))
    assert row.status is Status.DEGRADED
    assert row.reasons[0] == "the clock was low"
    assert row.reasons[1].startswith("self-audit, sequence_length: 330 processed tokens")
    sound = make_result()
    assert with_audit(sound) is sound


def test_old_rows_are_marked_when_they_are_summarised():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    row = make_summary([longer], make_rounds(longer, STEADY)).experiments[0]
    assert (row.status, row.runs) == (Status.DEGRADED, 5)
    assert row.reasons == (
        "self-audit, sequence_length: 330 processed tokens in 3 samples, up to 110 in one; "
        "the sequence length is 220",
    )


def test_every_invariant_says_what_must_hold():
    assert all(check.__doc__ for check in INVARIANTS.values())


def test_shorter_samples_are_honest_where_nobody_says_that_all_are_full():
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    rank = make_rank().model_copy(update={"evidence": {"text": {"constant_length": False}}})
    assert broken(make_result(longer, ranks=[rank])) == []


@pytest.mark.parametrize(("packed", "invariants"), [(False, []), (True, ["sequence_length"])])
def test_batches_without_their_padding_are_honest_beside_data_that_is_padded(packed, invariants):
    longer = make_experiment(scenario={"data": {"sequence_length": 220}})
    evidence = {"text": {"constant_length": True}, "batches": {"constant_length": packed}}
    rank = make_rank().model_copy(update={"evidence": evidence})
    assert broken(make_result(longer, ranks=[rank])) == invariants
