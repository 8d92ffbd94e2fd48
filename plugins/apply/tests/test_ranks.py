"""Several ranks of a script: a stack shards the model, or the script joins them and is checked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]


@pytest.mark.release
def test_two_ranks_train_as_one_whoever_joins_them() -> None:
    script = str(Path(__file__).with_name("ranks.py"))
    stacks = ["baseline", "fsdp2", "hsdp", "padding-free", "apart:baseline"]
    done = subprocess.run(
        [*TORCHRUN, "2", script, *stacks], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert said["apart:baseline"] == "nothing joins the gradients of 2 processes"
    assert len({said[stack] for stack in stacks[:-1]}) == 1, said
    assert said["fsdp2"].startswith("[")
