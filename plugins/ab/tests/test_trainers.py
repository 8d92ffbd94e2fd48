"""Real trainers under the observer; ACCEL_BENCH_TRAINERS is the folder of their environment."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from accel_bench_ab.launch import command_environment
from accel_bench_ab.record import Observed, observe

TRAINERS = Path(__file__).parent / "trainers"
ENVIRONMENT = os.environ.get("ACCEL_BENCH_TRAINERS", "")

pytestmark = [
    pytest.mark.skipif(not ENVIRONMENT, reason="ACCEL_BENCH_TRAINERS names no environment"),
    pytest.mark.long,
]

STEPS = 9
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def train(folder: Path, name: str, batch: int, *launcher: str) -> tuple[Observed, str]:
    """Return what is seen of nine steps of two micro-batches, and what the trainer prints."""
    records = folder / "observed"
    records.mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = [str(TRAINERS / f"{name}.py"), str(STEPS), str(batch), "2", str(folder / "out")]
    done = subprocess.run(
        [str(Path(ENVIRONMENT) / "bin" / "python"), *launcher, *script],
        env=command_environment(environment, records, folder / "no-page", observed=True),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return observe(records), done.stdout


@pytest.mark.parametrize(
    ("name", "first_tokens"),
    [
        ("bare", 156),
        ("accelerated", 156),
        ("lightning_loop", 156),
        ("hf_trainer", 164),
        ("sft", 108),
        ("dpo", 380),
    ],
)
def test_steps_tokens_and_losses_are_seen(name: str, first_tokens: int, tmp_path: Path) -> None:
    found, printed = train(tmp_path, name, 4)
    assert found.unseen == {}
    assert len(found.steps) == STEPS
    assert found.steps[0].real == first_tokens
    assert {step.passes for step in found.steps} == {2}
    if logged := [float(one) for one in re.findall(r"'loss': '?([\d.]+)", printed)]:
        assert [step.loss for step in found.steps] == pytest.approx(logged, rel=0.01)
    assert {*found.ranks[0].facts["updates"]} == {"1", "2", "8", "9"}


@pytest.mark.release
@pytest.mark.parametrize("name", ["lightning_loop", "hf_trainer", "sft", "dpo"])
def test_two_ranks_of_torchrun_are_one_run(name: str, tmp_path: Path) -> None:
    found, _ = train(tmp_path, name, 2, *TORCHRUN)
    assert found.unseen == {}
    assert len(found.ranks) == 2
    assert len(found.steps) == STEPS
    assert {step.passes for step in found.steps} == {4}
