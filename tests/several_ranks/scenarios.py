"""Write scenarios of several ranks, and run them in one program (`forked.py`)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install

from accel_bench import Result
from accel_bench.analysis.learning.curves import validation_curve
from accel_bench.plugins.registry import installed

WORK: dict[str, Any] = {
    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1, "hidden_size": 64}},
    "data": {
        "use": "synthetic",
        "sequence_length": 48,
        "lengths": {"median": 24, "sigma": 0.5},
        "held_out": 9,  # in the last of three batches, one of two ranks has no sample
    },
    "train": {"global_batch_size": 8, "learning_rate": 0.1, "max_grad_norm": 0.1},
    "optimizer": "sgd",
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 2, "phase_steps": 0, "rounds": 1, "timeout_seconds": 300},
}


def write(folder: Path, name: str, devices: int, stacks: Mapping[str, Any], **work: Any) -> Path:
    """Write a scenario; keys of `work` are merged into their sections, but for those that name
    another plugin or model."""
    merged: dict[str, Any] = {**WORK, "name": name, "stacks": dict(stacks)}
    merged["resources"] = {**WORK["resources"], "devices": devices}
    for key, value in work.items():
        is_changed = isinstance(WORK.get(key), dict) and not {"use", "id"} & {*value}
        merged[key] = {**WORK[key], **value} if is_changed else value
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(merged))
    return path


def validation_losses(result: Result) -> list[float]:
    """Return the loss of each evaluation, the sum over ranks with batches of their own."""
    curve = validation_curve(result)
    return [one.loss for one in curve if one.loss is not None]


def run_all(
    folder: Path,
    *scenarios: Path,
    pretenders: Mapping[str, str],
    source: str,
    environment: Mapping[str, str] | None = None,
) -> dict[str, dict[str, Result]]:
    """Run all stacks of the scenarios; return results by scenario and stack.

    `pretenders` are plugins, by name, and their classes in `source`.
    """
    out, site = folder / "results.json", folder / "site"
    site.mkdir()
    install(site, "accel-bench-pretenders", pretenders, source)
    program = Path(__file__).with_name("forked.py")
    paths = filter(None, [str(site), str(program.parents[1]), os.environ.get("PYTHONPATH")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(program), *map(str, scenarios), str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: {
            stack: Result.model_validate_json(json.dumps(one["result"]))
            for stack, one in stacks.items()
        }
        for name, stacks in json.loads(out.read_text()).items()
    }


@contextmanager
def starting_afresh(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield no words: the program starts a worker, as a user's does."""
    yield ()


@contextmanager
def forking(folder: Path, trains: bool = True) -> Iterator[tuple[str, str]]:
    """Install `launcher.py` for as long as the block lasts; yield the words that choose it.

    For programs that run in this process: what `trains` needs is imported once, for all ranks.
    """
    if trains:
        importlib.import_module("accel_bench.modeling.loading")
    source = "from several_ranks.launcher import Forked\n"
    folder.mkdir(exist_ok=True)
    install(folder, "accel-bench-forking", {"forking": "Forked"}, source)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        installed.cache_clear()
        yield ("--set", "launcher=forking")
    installed.cache_clear()


STARTS = [
    pytest.param(forking, id="forked"),
    pytest.param(starting_afresh, id="fresh worker", marks=pytest.mark.release),
]
"""How the program of a test starts its worker; afresh takes seconds for the libraries."""
