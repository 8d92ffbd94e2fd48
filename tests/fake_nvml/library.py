"""Compile the stand-in for NVIDIA's library, and write what it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from accel_bench.result import Metric, Result

HERE = Path(__file__).parent
NAME = "libnvidia-ml.so.1"

TWO_GPUS = (
    "devices 2",
    "0 uuid GPU-aaaa",
    "0 name NVIDIA H100 80GB HBM3",
    "0 bus 00000000:41:00.0",
    "0 memory_used 1000",
    "0 watts 100",
    "0 celsius 41",
    "1 uuid GPU-bbbb",
    "1 name NVIDIA H100 80GB HBM3",
    "1 bus 00000000:01:00.0",
    "1 memory_used 3000",
    "1 watts 200",
    "1 celsius 42",
)
"""Two devices, of which CUDA, by bus, shows NVML's second one first."""

OURS = ("{n} process PID 5000", "{n} memory_used 9000")


def compile_library(folder: Path) -> Path:
    """Make the library in a folder, which is to come first on LD_LIBRARY_PATH."""
    compiler = os.environ.get("CC") or "cc"
    source, library = HERE / "nvml.c", folder / NAME
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-parameter"]
    subprocess.run([*command, "-o", str(library), str(source)], check=True)
    return folder


def compiler_found() -> bool:
    """Whether there is anything to compile it with."""
    return shutil.which(os.environ.get("CC") or "cc") is not None


class Watched(NamedTuple):
    """How an attempt with stand-in devices ended."""

    result: Result
    """The row that was kept."""

    out: str
    """What else the program printed."""

    live: str
    """What the progress line showed of the devices, at last."""

    def metric(self, name: str, kind: str = "") -> Metric:
        """The only metric of that name and kind."""
        (found,) = [m for m in self.result.metrics if (m.name, m.kind) == (name, kind)]
        return found


class Attempts:
    """The process of `attempt.py`, which imports once what all attempts need."""

    def __init__(self, library: Path) -> None:
        self.library = str(library)
        variables = {"LD_LIBRARY_PATH": self.library, "PYTHONPATH": str(HERE.parent)}
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "attempt.py")],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, **request: Any) -> int:
        """Carry out one attempt; return its exit code."""
        streams = self._process.stdin, self._process.stdout
        assert streams[0] and streams[1]
        streams[0].write(f"{json.dumps(request)}\n")
        streams[0].flush()
        return int(streams[1].readline())

    def end(self) -> None:
        """End it."""
        self._process.communicate()


class Machine:
    """A machine whose NVML says what a script says."""

    def __init__(self, folder: Path, library: Path, attempts: Attempts | None = None) -> None:
        self.folder = folder
        self.attempts = attempts
        self.script = folder / "devices.txt"
        self.environment = {
            **os.environ,
            "FAKE_NVML": str(self.script),
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": str(HERE.parent),
        }
        self.environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.environment.pop("CUDA_DEVICE_ORDER", None)
        self.say(TWO_GPUS)

    def say(self, lines: Sequence[str]) -> None:
        """Say this from now on."""
        self.script.write_text("".join(f"{line}\n" for line in lines), encoding="utf8")

    def add(self, *lines: str) -> None:
        """Say more."""
        self.say([*self.script.read_text(encoding="utf8").splitlines(), *lines])

    def python(self, program: str) -> Any:
        """What a Python program prints as its last line, as JSON."""
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def watch(self, device: int = 0, options: dict[str, Any] | None = None, **plan: Any) -> Watched:
        """Carry out an attempt whose rank uses one device; `plan` is that of `rank.py`.

        Unless a test has said otherwise, that device is the only one that CUDA shows.
        """
        uuid = ("aaaa", "bbbb")[device]
        if "CUDA_DEVICE_ORDER" not in self.environment:
            self.environment.setdefault("CUDA_VISIBLE_DEVICES", f"GPU-{uuid}")
        ours = [line.format(n=device) for line in OURS]
        plan = {"uuid": uuid, "seconds": 0.4, "before": ours, "during": [], "gone": [], **plan}
        work = self.folder / "work"
        work.mkdir()
        request = {"folder": str(work), "plan": plan, "options": options or {}}
        output, library = self.folder / "output", Path(self.environment["LD_LIBRARY_PATH"])
        # A library is looked for where the process was told to when it began.
        known = self.attempts if self.attempts and self.attempts.library == str(library) else None
        attempts = known or Attempts(library)
        try:
            code = attempts.run(**request, environment=self.environment, output=str(output))
        finally:
            if not known:
                attempts.end()
        said = output.read_text(encoding="utf8")
        assert code == 0, said
        *before_it, last = said.splitlines()
        live = work / "live.txt"
        shown = live.read_text(encoding="utf8") if live.exists() else ""
        return Watched(Result.model_validate_json(last), "\n".join(before_it), shown)
