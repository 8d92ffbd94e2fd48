"""Check what a profile records on request: memory, fields of NVML, and marks for Nsight."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_bench_metrics.nvml_fields import metric_name

from accel_bench.store.database import open_store
from benchmarks.gpu_sections import FEW, HERE, TINY, settings

STACK = "lora"

FIELDS = ("utilization.gpu", "memory.used", "power.draw", "temperature.gpu")
"""Fields of NVML that are sampled over time."""

WIDE = ("model.overrides.num_hidden_layers=2", "measure.warmup=3", "measure.steps=100")
"""Two layers of the 7B model: some seconds of steps, for NVML's readings."""


def main() -> None:
    """Profile one stack twice, and print one document with what both have left."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_profile", description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("results", type=Path, help="results folder")
    parser.add_argument("--small", action="store_true", help="only show that it works")
    asked = parser.parse_args()
    folder = asked.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    command = profile_command(asked.device, folder, asked.small)
    code, printed, _ = run([*command, "--memory"], folder)
    found = {
        "device_type": asked.device,
        "exit_code": code,
        "memory": memory_parts(printed),
        "fields": fields_of(folder),
        "nsight": nsight(command, folder),
    }
    print(json.dumps(found, indent=1))


def profile_command(device: str, folder: Path, small: bool) -> list[str]:
    """Return the command that profiles the stack, with fields of NVML among the metrics."""
    nvml = json.dumps([{"use": "nvml", "fields": FIELDS}])
    few = (*settings(*TINY, "model.dtype=float32"), *FEW[2:]) if small else settings(*WIDE)
    return [
        *(sys.executable, "-m", "accel_bench", "profile", str(HERE / "llama-2-7b-lora.yaml")),
        *("--stack", STACK, "--device", device, "--format", "json", "--results", str(folder)),
        *few,
        *settings(f"metrics={nvml}"),
    ]


def run(command: Sequence[str], folder: Path) -> tuple[int, str, list[str]]:
    """Run a command in a folder, its messages in the log.

    Return its exit code, its output and its errors.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    print(done.stderr, file=sys.stderr)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode, done.stdout, errors


def ranks_of(printed: str) -> list[tuple[Path, Any]]:
    """Return the folder and the profile of every rank; none where no report was printed."""
    try:
        rows = json.loads(printed[printed.index("{") :])["profiles"]
    except ValueError:
        return []
    return [
        (Path(row["folder"]) / f"rank{rank['rank']}", rank) for row in rows for rank in row["ranks"]
    ]


def memory_parts(printed: str) -> list[dict[str, Any]]:
    """Return what the profile of each rank says of memory, and the size of its snapshot."""
    found = []
    for folder, rank in ranks_of(printed):
        memory, saved = rank["memory"] or {}, rank["saved"] or {}
        snapshot = folder / (memory.get("snapshot") or "no snapshot")
        found.append(
            {
                "peak_bytes": memory.get("peak_bytes", 0),
                "peak": memory.get("peak", {}),
                "saved_bytes": sum(saved.values()),
                "saving_modules": len(saved),
                "snapshot_bytes": snapshot.stat().st_size if snapshot.is_file() else 0,
                "warnings": rank["warnings"],
            }
        )
    return found


def fields_of(folder: Path) -> list[dict[str, Any]]:
    """Return the fields of NVML that were stored with the first run, with their readings."""
    names = {metric_name(name) for name in FIELDS}
    with open_store(folder, write=False) as store:
        metrics = [one for result in store.results()[:1] for one in result.metrics]
    return [
        {
            "name": one.name,
            "value": one.value,
            "unit": one.unit,
            "readings": len(one.series.values) if one.series else 0,
            "reason": one.reason,
        }
        for one in metrics
        if one.name in names
    ]


def nsight(command: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the command that `--nsys` prints; where nsys is missing, what it would record."""
    _, printed, _ = run([*command, "--nsys"], folder)
    words = shlex.split(printed)
    program = shutil.which("nsys") or ""
    own = words if program else words[words.index(sys.executable) :]
    code, output, errors = run(own, folder)
    ranks = [rank for _, rank in ranks_of(output)]
    return {
        "command": printed.strip(),
        "nsys": program,
        "exit_code": code,
        "steps": [rank["steps"] for rank in ranks],
        "warnings": [*(text for rank in ranks for text in rank["warnings"]), *errors],
        "reports": sorted(path.name for path in folder.glob("*.nsys-rep")),
    }


if __name__ == "__main__":
    main()
