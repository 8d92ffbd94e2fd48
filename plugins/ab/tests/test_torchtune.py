"""A recipe of torchtune under the observer, in an environment with the torchao that it needs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from accel_bench_ab.launch import command_environment
from accel_bench_ab.record import Observed, observe

TRAINERS = Path(__file__).parent / "trainers"
CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
ENVIRONMENT = os.environ.get("ACCEL_BENCH_TRAINERS", "")
OF_ITS_OWN = ("torchtune==0.6.1", "torchao<0.15")
"""The last torchtune, and the last torchao with the module `nf4tensor` that it imports."""

STEPS = 9

pytestmark = [
    pytest.mark.skipif(not ENVIRONMENT, reason="ACCEL_BENCH_TRAINERS names no environment"),
    pytest.mark.release,
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny checkpoint, and torchtune beside the trainers' packages."""
    place = tmp_path_factory.mktemp("torchtune")
    python = place / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], check=True)
    sites = "import sysconfig; print(sysconfig.get_path('purelib'))"
    theirs, own = (
        subprocess.run(
            [one, "-c", sites], capture_output=True, text=True, check=True
        ).stdout.strip()
        for one in (Path(ENVIRONMENT) / "bin" / "python", python)
    )
    Path(own, "trainers.pth").write_text(f"import site; site.addsitedir({theirs!r})")
    kept = [line for line in CONSTRAINTS.read_text().splitlines() if not line.startswith("torchao")]
    (place / "constraints.txt").write_text("\n".join(kept))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "-c", str(place / "constraints.txt"), *OF_ITS_OWN], check=True)
    save = f"from works import make_model; make_model().save_pretrained({str(place / 'model')!r})"
    subprocess.run([python, "-c", save], check=True, cwd=TRAINERS)
    return place


def train(folder: Path, name: str, *changes: str) -> tuple[Observed, list[float]]:
    """Return what is seen of nine steps, and the losses that torchtune logs."""
    records, out = folder / f"observed-{name}", folder / f"out-{name}"
    records.mkdir()
    recipe = ["run", "full_finetune_single_device", "--config", str(TRAINERS / "torchtune.yaml")]
    own = [f"output_dir={out}", f"checkpointer.output_dir={out}", f"metric_logger.log_dir={out}"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(TRAINERS)}
    done = subprocess.run(
        [str(folder / "env" / "bin" / "tune"), *recipe, *own, *changes],
        env=command_environment(variables, records, folder / "no-page", observed=True),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (log,) = out.glob("log_*.txt")
    return observe(records), [float(one) for one in re.findall(r"loss:([\d.]+)", log.read_text())]


def test_a_recipe_is_seen_with_its_optimizer_in_one_piece_and_in_the_backward_pass(
    folder: Path,
) -> None:
    whole, logged = train(folder, "whole")
    assert whole.unseen == {}
    assert len(whole.steps) == STEPS
    # torchtune multiplies the mean loss by the tokens that it learns from, and pads without a mask.
    per_token = [step.loss / sum(16 + i % 16 for i in ids) for step, ids in batches(whole)]
    assert per_token == pytest.approx(logged, rel=0.01)
    assert [step.processed for step in whole.steps] == [
        4 * max(16 + i % 16 for i in ids) for _, ids in batches(whole)
    ]
    parts, _ = train(folder, "parts", "optimizer_in_bwd=True", "optimizer.weight_decay=0")
    assert parts.unseen == {}
    assert len(parts.steps) == STEPS
    names = [{*one.ranks[0].facts["updates"]["8"]} for one in (whole, parts)]
    assert names[0] == names[1]
    assert len(names[0]) == 21


def batches(found: Observed) -> list[tuple[object, range]]:
    """Return steps with the numbers of their samples."""
    return [(step, range(4 * i, 4 * i + 4)) for i, step in enumerate(found.steps)]
