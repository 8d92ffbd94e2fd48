"""Check that the plugins keep their contract on this device, the loss included."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import Any

from accel_bench.plugins.registry import installed
from accel_bench.testing import check_plugin

BFLOAT16: dict[str, Any] = {"model": {"dtype": "bfloat16"}}

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

LORA: dict[str, Any] = {
    "adapter": {"use": "lora", "r": 8, "alpha": 16, "target_modules": ATTENTION},
    **BFLOAT16,
}

TRIALS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fused-kernels", {}),
    ("fused-kernels", LORA),
    ("liger", {}),
    ("torch-compile", BFLOAT16),
    ("padding-free", {}),
    ("moe", {"model": {"id": "mixtral-8x7b", "dtype": "bfloat16"}}),
    ("activation-checkpointing", LORA),
    ("activation-offload", LORA),
)
"""Plugins, and changes of the kit's tiny scenario."""


def main() -> None:
    """Check every installed plugin, and print what is proven and what is violated."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_kernels", description=__doc__)
    parser.add_argument("device", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    names = {plugin.name for plugin in installed()}
    found: list[dict[str, Any]] = []
    # Interrupted by its limit, it says what it knows.
    with contextlib.suppress(KeyboardInterrupt):
        for name, scenario in TRIALS:
            if name in names:
                found.append(check(name, scenario, device))
    print(json.dumps({"device": device, "plugins": found}, indent=1))


def check(name: str, scenario: dict[str, Any], device: str) -> dict[str, Any]:
    """Check one plugin against its contract; the kit's output goes to the log."""
    found: dict[str, Any] = {"plugin": name, "scenario": scenario, "proven": 0}
    with contextlib.redirect_stdout(sys.stderr):
        try:
            report = check_plugin(name, scenario=scenario, device=device)
        except AssertionError as error:
            return {**found, "violated": [str(error)], "not_run": ""}
    unproven = [str(clause) for clause in report.unproven]
    not_run = "" if report.ran else "; ".join(unproven)
    return {**found, "proven": len(report.proven), "unproven": unproven} | {
        "violated": [],
        "not_run": not_run,
    }


if __name__ == "__main__":
    main()
