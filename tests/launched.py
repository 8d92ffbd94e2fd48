"""Start the program by a launcher, and look at what is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.program import MARK, Finished, Program, null_scenario, write_scenario

PROGRAM = (sys.executable, "-m", "accel_bench")

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@dataclass
class Launched(Program):
    """The program as a launcher starts it, with a folder of its own for temporary files."""

    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.environment["TMPDIR"] = str(self.temporary)
        self.temporary.mkdir(exist_ok=True)
        self.environment["ACCEL_BENCH_CACHE"] = str(self.folder / "cache")

    @property
    def temporary(self) -> Path:
        """Where agents keep what their ranks write."""
        return self.folder / "temporary"

    def start_command(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start any command and do not wait."""
        variables = {**os.environ, "GIT_DIR": os.devnull, MARK: self.mark, **self.environment}
        variables |= {"PYTHONPATH": str(self.site), **(environment or {})}
        variables["ACCEL_BENCH_RESULTS"] = str(self.results_folder)
        process = subprocess.Popen(
            command,
            env=variables,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def call_command(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Finished:
        """Start any command and wait for its end."""
        return self.finish(self.start_command(command, environment))

    def write(self, **changes: Any) -> str:
        """Write a scenario without torch for two ranks; return the name of its file."""
        settings = {"parallel": "none", "resources": {"device": "cpu", "devices": 2}}
        stacks = changes.pop("stacks", {"baseline": []})
        scenario = null_scenario(stacks, **{**settings, **changes})
        return str(write_scenario(self.folder / "scenario.yaml", scenario))

    def write_training(self, **changes: Any) -> str:
        """Write a scenario of two ranks that train a tiny model by gloo."""
        settings = {
            "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1}},
            "data": {"use": "synthetic", "sequence_length": 32},
            "optimizer": "sgd",
            "engine": "torch",
            "parallel": "ddp",
            "metrics": ["memory"],
            "resources": {"device": "cpu", "devices": 2, "threads": 1},
            "measure": {"warmup": 1, "steps": 3, "rounds": 1},
        }
        return self.write(**{**settings, **changes})

    def ranks_left(self) -> list[Path]:
        """Folders of ranks that an agent has not removed."""
        return list(self.temporary.glob("accel-bench-rank-*"))


def free_port() -> int:
    """A port of the loopback interface after which another one is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def by_hand(rank: int, port: int, size: int = 2) -> dict[str, str]:
    """The variables of a process as torchrun sets them, and a person can."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
