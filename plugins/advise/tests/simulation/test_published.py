"""The error table of docs/estimate.md equals the simulation's results."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.schema import BatchShape, SimulationRequest
from accel_bench_advise.estimates.speed import roofline
from accel_bench_advise.estimates.target import gpu_peaks
from accel_bench_advise.simulation.simulate import SimulatedRun
from real_steps import experiment_of

from accel_bench.catalog.hardware import named_hardware

DOCUMENT = Path(__file__).parents[4] / "docs" / "estimate.md"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
AGAIN = {"gradient_checkpointing": True}
HALF = {"id": "mistral-7b", "dtype": "float16"}
LORA = {"use": "lora", "r": 16, "target_modules": ATTENTION, "autocast_adapter_dtype": False}

WORK: dict[str, dict[str, Any]] = {
    "Mistral 7B, full, fp16": {"model": HALF, "train": AGAIN},
    "Mistral 7B, LoRA, fp16": {"model": HALF, "adapter": LORA, "train": AGAIN},
    "Llama 2 7B, full, bf16": {"model": {"id": "llama-2-7b", "dtype": "bfloat16"}},
    "Mixtral 8x7B, full, bf16": {
        "model": {"id": "mixtral-8x7b", "dtype": "bfloat16"},
        "train": AGAIN,
    },
    "Llama 2 70B, full, bf16": {
        "model": {"id": "llama-2-70b", "dtype": "bfloat16"},
        "train": AGAIN,
    },
}
"""Work of the table's rows, by name."""

DEVICES = {"A100 80GB": "a100-sxm-80gb", "8 x A100 80GB": "a100-sxm-80gb", "H100": "h100-sxm"}


def rows() -> list[list[str]]:
    """Return the cells of the table's rows."""
    lines = DOCUMENT.read_text(encoding="utf8").splitlines()
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for cells in tables if len(cells) == 10 and cells[2] in DEVICES]


def number(cell: str) -> float:
    return float(re.sub(r"[*,%+ ]", "", cell))


def test_the_errors_and_the_misses_follow_from_the_figures() -> None:
    missed = known = 0
    for _, _, _, _, published, estimated, error, speed, span, within in rows():
        if published != "-":
            off = 100 * (number(estimated) / number(published) - 1)
            assert number(error) == pytest.approx(off, abs=0.06)
            assert abs(off) < 5
            known += 1
        low, high = map(number, span.split(" to "))
        assert within == ("yes" if low <= number(speed) <= high else "**no**")
        missed += within != "yes"
    total = len(rows())
    text = DOCUMENT.read_text(encoding="utf8")
    assert f"within 5 % in {known} of {known} rows that publish memory" in text
    assert f"speed within the span in {total - missed} of {total} rows" in text


@pytest.mark.release
@pytest.mark.parametrize("cells", rows(), ids=lambda cells: f"{cells[1]}, {cells[3]}")
def test_the_estimates_are_those_of_today(cells: list[str]) -> None:
    _, work, device, shape, _, estimated, _, _, span, _ = cells
    settings = WORK[work]
    if work.startswith("Llama 2 7B") and device != "H100":
        settings = {**settings, "train": AGAIN}
    samples, length = map(int, shape.split(" x "))
    wanted = BatchShape(micro_batch_size=samples, sequence_length=length)
    request = SimulationRequest(experiment=experiment_of(settings), shape=wanted, device="cuda")
    found = SimulatedRun(request).simulate(wanted).footprint
    assert found is not None
    if estimated != "-":
        assert sum(found.parts.values()) / 1e9 == pytest.approx(number(estimated), rel=0.002)
    seconds = roofline(found, gpu_peaks(named_hardware(DEVICES[device]).hardware, "highest"))
    assert seconds is not None
    low, high = map(number, span.split(" to "))
    assert samples * length / seconds.high == pytest.approx(low, rel=0.01)
    assert samples * length / seconds.low == pytest.approx(high, rel=0.01)
