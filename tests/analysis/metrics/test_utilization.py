"""Model FLOP/s, MFU and HFU of a run, against figures worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import make_experiment, make_rank, make_result
from flop_counting import catalog_model, run_of

from accel_bench import DeviceType
from accel_bench.analysis.metrics.utilization import Utilization, peak_flops_of, utilization
from accel_bench.builtin.cpu import CPU
from accel_bench.catalog.hardware import peak_flops
from accel_bench.effective import EffectiveConfiguration
from accel_bench.flops.workload import Attention, Matmul, Workload
from accel_bench.machine import devices
from accel_bench.result import Metric, RankResult, Result, Sample, Window
from accel_bench.worker.flops.trace import read_workload

MATRIX = Matmul(name="m", rows=10, columns=10)
HEAD = Attention(heads=1, query_size=5, value_size=5)
WORKLOAD = Workload(matmuls=(MATRIX,), attentions=(HEAD,))
TWO_DEVICES = {"resources": {"device": "cpu", "devices": 2}}


def sample(
    step: int = 1, *, samples: int = 2, processed: int = 20, real: int = 20, seconds: float = 1.0
) -> Sample:
    return Sample(
        step=step,
        seconds=seconds,
        sequences=samples,
        processed_tokens=processed,
        real_tokens=real,
        supervised_tokens=real,
        loss=1.0,
    )


def rank(
    *samples: Sample,
    number: int = 0,
    workload: Workload | None = WORKLOAD,
    seconds: float = 1.0,
    matmul_seconds: float | None = None,
) -> RankResult:
    metrics = ()
    if matmul_seconds is not None:
        metrics = (
            Metric(
                name="matmul_seconds",
                figure="matmul_seconds",
                value=matmul_seconds,
                unit="seconds",
                scope="rank",
            ),
        )
    window = Window(started=5.0, ended=5.0 + seconds, samples=samples or (sample(),))
    changes = {"window": window, "workload": workload, "metrics": metrics}
    return make_rank(number).model_copy(update=changes)


def one(*samples: Sample, **changes: Any) -> Result:
    return make_result(ranks=[rank(*samples, **changes)])


def used(result: Result, peak: float | None = None) -> Utilization:
    found = utilization(result, peak)
    assert found is not None
    return found


def test_llama_2_7b_at_10690_tokens_a_second_is_492_65_teraflops(tmp_path: Path) -> None:
    workload = read_workload(run_of(catalog_model("llama-2-7b"), tmp_path))
    whole = sample(samples=1, processed=4096, real=4096)
    result = one(whole, workload=workload, seconds=4096 / 10_690.01)
    found = used(result, peak=989e12)
    assert found.flops_per_token.non_causal == pytest.approx(46_084_915_200, rel=1e-12)
    assert round(found.model_flops_per_second.non_causal / 1e12, 2) == 492.65
    assert found.mfu is not None
    assert found.mfu.non_causal == pytest.approx(0.49813, abs=1e-5)
    assert found.mfu.causal == pytest.approx(0.49813 * 42_863_689_728 / 46_084_915_200, abs=1e-5)


def test_the_length_of_attention_is_processed_tokens_by_samples_of_each_step() -> None:
    found = used(one(sample(1, samples=2), sample(2, samples=1, processed=30, real=30)))
    assert found.sequence_length == pytest.approx(50 / 3)
    attention = 20 * (12 * 5 * 10) + 30 * (12 * 5 * 30)
    assert found.flops_per_token.non_causal == pytest.approx(6 * 100 + attention / 50)
    assert found.flops_per_token.causal == pytest.approx(6 * 100 + attention / 50 / 2)


def test_model_flops_are_of_real_tokens_and_hardware_flops_of_processed_ones() -> None:
    found = used(one(sample(real=15), seconds=2.0), peak=1e5)
    flops = 6 * 100 + 12 * 5 * 10
    assert found.model_flops_per_second.non_causal == pytest.approx(15 * flops / 2)
    assert found.hardware_flops_per_second.non_causal == pytest.approx(20 * flops / 2)
    assert found.mfu is not None and found.hfu is not None
    assert found.mfu.non_causal == pytest.approx(15 * flops / 2 / 1e5)
    assert found.hfu.non_causal == pytest.approx(20 * flops / 2 / 1e5)


def test_attention_is_counted_by_pairs_where_the_batches_counted_them() -> None:
    # Sequences of 5 and 10 tokens: padded to 10, and flattened into one row of 15.
    pairs = {"real_pairs": 125, "processed_pairs": 200}
    padded = sample(samples=2, processed=20, real=15).model_copy(update=pairs)
    pairs = {"real_pairs": 125, "processed_pairs": 125}
    flattened = sample(samples=2, processed=15, real=15).model_copy(update=pairs)
    before, after = used(one(padded)), used(one(flattened))
    model = 15 * 600 + 125 * 12 * 5
    assert before.sequence_length == after.sequence_length == pytest.approx(125 / 15)
    for found in (before, after):
        assert found.model_flops_per_second.non_causal == pytest.approx(model)
    assert before.hardware_flops_per_second.non_causal == pytest.approx(20 * 600 + 200 * 60)
    assert after.hardware_flops_per_second.non_causal == pytest.approx(model)


def test_recomputation_raises_hfu_and_leaves_mfu() -> None:
    again = WORKLOAD.model_copy(
        update={"matmuls": (MATRIX.model_copy(update={"recomputed": True}),)}
    )
    kept, recomputed = used(one(), peak=1e6), used(one(workload=again), peak=1e6)
    assert kept.mfu == kept.hfu == recomputed.mfu
    added = recomputed.hardware_flops_per_second.causal - recomputed.model_flops_per_second.causal
    assert added == pytest.approx(20 * 2 * 100)


def test_hardware_flops_are_null_where_it_is_not_known_what_is_recomputed() -> None:
    unknown = WORKLOAD.model_copy(
        update={"matmuls": (MATRIX.model_copy(update={"recomputed": None}),)}
    )
    found = used(one(workload=unknown), peak=1e6)
    assert (found.hardware_flops_per_second, found.hfu) == (None, None)
    assert found.mfu == used(one(), peak=1e6).mfu


def test_rates_are_per_device_and_the_slowest_rank_makes_the_window() -> None:
    ranks = [rank(number=0, seconds=1.0), rank(number=1, seconds=4.0)]
    found = used(make_result(make_experiment(scenario=TWO_DEVICES), ranks=ranks))
    assert found.model_flops_per_second.non_causal == pytest.approx(20 * 1200 / 4)


def test_batches_of_another_shape_than_the_observed_one_have_no_utilization() -> None:
    shape = {"observed_elements": 20, "observed_samples": 2, "observed_pairs": 200}
    observed = WORKLOAD.model_copy(update={"flops_method": "observed", **shape})
    same = sample(samples=4, processed=40, real=40)
    wider = sample(samples=2, processed=40, real=40)
    uneven = same.model_copy(update={"processed_pairs": 4 * 5**2 + 4 * 15**2})
    used(one(same, workload=observed))
    used(one(same.model_copy(update={"processed_pairs": 400}), workload=observed))
    assert utilization(one(wider, workload=observed), None) is None
    assert utilization(one(uneven, workload=observed), None) is None


def test_an_unknown_peak_gives_null() -> None:
    found = used(one())
    assert found.mfu is None
    assert found.hfu is None
    assert found.model_flops_per_second.causal > 0


@pytest.mark.parametrize(
    "ranks",
    [
        [rank(workload=None)],
        [rank(sample(samples=0))],
        [rank(sample(real=0))],
        [],
        [rank(), make_rank(1).model_copy(update={"window": None})],
    ],
)
def test_without_a_workload_or_numbers_there_is_no_utilization(ranks: Sequence[RankResult]) -> None:
    assert utilization(make_result(ranks=ranks), 1e12) is None


def test_the_fraction_of_matmul_roofline_is_the_time_of_the_matmuls_by_that_of_a_step() -> None:
    steps = [sample(number) for number in (1, 2, 3, 4)]
    assert used(one(*steps, matmul_seconds=0.2)).fraction_of_matmul_roofline == pytest.approx(0.8)
    assert used(one(*steps)).fraction_of_matmul_roofline is None


def test_the_fraction_of_matmul_roofline_is_the_slowest_ranks_and_null_where_one_lacks_it() -> None:
    experiment = make_experiment(scenario=TWO_DEVICES)
    ranks = [rank(number=0, matmul_seconds=0.25), rank(number=1, matmul_seconds=0.5)]
    assert used(make_result(experiment, ranks=ranks)).fraction_of_matmul_roofline == pytest.approx(
        0.5
    )
    lacking = [ranks[0], rank(number=1)]
    assert used(make_result(experiment, ranks=lacking)).fraction_of_matmul_roofline is None


class AcmeGPU(DeviceType):
    """A device that the table does not have."""

    torch_type = "acme"
    label = "Acme"

    def peak_flops(self, name: str, dtype: str) -> float | None:
        return 4e14 if (name, dtype) == ("Acme A1", "bfloat16") else None


def test_a_device_type_gives_the_peaks_of_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": AcmeGPU(), "cpu": CPU()})
    effective = EffectiveConfiguration(matmul_dtype="bfloat16")
    peaks = []
    for name in ("Acme A1", "Acme A2", "NVIDIA H100 80GB HBM3"):
        on_it = make_rank(device={"type": "acme", "name": name})
        ranks = [on_it.model_copy(update={"effective": effective})]
        peaks.append(peak_flops_of(make_result(ranks=ranks)))
    assert peaks == [4e14, None, peak_flops("NVIDIA H100 80GB HBM3", "bfloat16")]
