"""The environment with real trainers, and what its programs are given."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "ACCEL_BENCH_TRAINERS"
"""Variable with the folder of an environment that has trl, beside what accel-bench needs."""

PROGRAM = Path(__file__).with_name("trainer_program.py")

Ask = Callable[..., Any]


@pytest.fixture(scope="session")
def trainers() -> Path:
    """The interpreter of the environment with real trainers."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no environment with trl")
    return Path(folder).absolute() / "bin" / "python"


@pytest.fixture(scope="session")
def ask_trainers(trainers: Path, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Function that calls one of `trainer_program` in that environment."""
    home = tmp_path_factory.mktemp("home")
    environment = {
        **os.environ,
        "HF_HOME": str(home),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }

    def ask(function: str, **arguments: Any) -> Any:
        done = subprocess.run(
            [str(trainers), str(PROGRAM), function, json.dumps(arguments)],
            capture_output=True, text=True, check=False, timeout=600, cwd=home, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask
