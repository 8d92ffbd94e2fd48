"""Define the sections of the script for a GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import gpu_judges as judges
from benchmarks.gpu_setup import CHECKOUT

HERE = CHECKOUT / "benchmarks"

KEPT = CHECKOUT / "gpu-results"
"""Results folders that stay from call to call, so that rounds add up."""

CPU_LIMIT_BYTES = 8 * 2**30
"""Address space of the out-of-memory section on a CPU, where the system would kill, not refuse."""

WORKS = (
    "single-gpu-full",
    "single-gpu-qlora",
    "single-gpu-lora",
    "single-gpu-lora-8b",
    "llama-3-8b-qlora",
    "padding-free",
)
"""Scenarios with claims, in order of worth."""

FEW = ("--rounds", "1", "--set", "measure.steps=3", "--set", "measure.warmup=1")
"""Few steps."""

TINY = ("model.id=tiny-llama-cpu", "data.sequence_length=64", "resources.threads=1")
"""Settings of a model that a CPU trains in seconds."""

TINIER = (
    "model.overrides.num_hidden_layers=1",
    "stacks.torch-compile.torch-compile.backend=aot_eager",
    "train.micro_batch_size=2",
    "data.limit_bytes=100000",
    *("data.sequence_length=32", "resources.threads=1"),
)
"""Settings to check that the quickstart works."""

SMALL_PATIENCE = 4
"""Small sections may take longer by this factor: they only have to work, on a busy machine too."""


@dataclass(frozen=True)
class Section:
    """Command that prints a JSON document, with its limits and judge."""

    name: str
    """Name of the section, and of its document, NAME.json."""

    command: Sequence[str]
    """Command line to run."""

    seconds: float
    """Limit; the command is then interrupted."""

    judge: Callable[[Any], tuple[bool, str]]
    """Judge of the document: whether it passes, and a line of text about it."""

    limit_bytes: int | None = None
    """Limit of its address space."""

    on_request: bool = False
    """Whether it is only run when it is named."""


def sections(asked: argparse.Namespace, folder: Path) -> list[Section]:
    """Return the sections in order of worth: time may run out for the last."""
    found = [*_always(asked, folder), *on_request(asked, folder)]
    if not asked.small:
        return found
    return [replace(section, seconds=SMALL_PATIENCE * section.seconds) for section in found]


def _always(asked: argparse.Namespace, folder: Path) -> list[Section]:
    python, device = sys.executable, ("--device", asked.device)
    on_cpu, small = asked.device == "cpu", asked.small
    run = (python, "-m", "accel_bench", "run")
    printed = (*device, "--format", "json", "--results", str(folder))
    tiny = settings(*TINY, "model.dtype=float32")
    short = ("--small",) if small else ()
    names = ("harness", "synchronisations", "engine", "hf-trainer")
    large = () if on_cpu else ("engine-large",)
    return [
        Section(
            "correctness",
            (python, "-m", "benchmarks.gpu_check", asked.device),
            90,
            judges.judge_correctness,
        ),
        Section(
            "llama-2-7b-lora",
            (*run, str(HERE / "llama-2-7b-lora.yaml"), *printed, *((*FEW, *tiny) if small else ())),
            240,
            judges.judge_comparison,
        ),
        Section(
            "numbers",
            (python, "-m", "benchmarks.gpu_numbers", asked.device, str(folder), *short),
            90,
            judges.judge_numbers,
        ),
        Section(
            "overhead",
            (python, "-m", "benchmarks", *names, *large, *device, *(["--quick"] if small else [])),
            180,
            judges.judge_overhead,
        ),
        Section(
            "out-of-memory",
            (*run, str(HERE / "out-of-memory.yaml"), *printed),
            120,
            judges.judge_out_of_memory,
            CPU_LIMIT_BYTES if on_cpu else None,
        ),
        Section(
            "quickstart",
            (
                *(*run, "quickstart", *printed),
                *((*FEW, *settings(*TINIER)) if small else ("--rounds", "5")),
            ),
            420,
            judges.judge_comparison,
        ),
    ]


def on_request(asked: argparse.Namespace, folder: Path) -> Iterator[Section]:
    """Yield the sections that run only when named: the comparisons behind the claims."""
    python, device, short = sys.executable, asked.device, ("--small",) if asked.small else ()
    yield Section(
        "kernels",
        (python, "-m", "benchmarks.gpu_kernels", device),
        580,
        judges.judge_kernels,
        on_request=True,
    )
    yield Section(
        "floor",
        (python, "-m", "benchmarks.floor", device, *short),
        60,
        judges.judge_floor,
        on_request=True,
    )
    yield profile(asked)
    yield Section(
        "profile-parts",
        (python, "-m", "benchmarks.gpu_profile", device, str(folder / "parts"), *short),
        300,
        judges.judge_parts,
        on_request=True,
    )
    yield Section(
        "micro",
        (python, "-m", "benchmarks.gpu_micro", device, *short),
        300,
        judges.judge_micro,
        on_request=True,
    )
    yield comparison("quantized-peft", asked, KEPT / "quantized")
    for work in WORKS:
        yield comparison(work, asked, KEPT / "works")
    floor = ("--floor", str(asked.output / "floor.json"))
    yield Section(
        "claims",
        (python, "-m", "benchmarks.claims", str(KEPT / "works"), str(KEPT / "claims"), *floor),
        60,
        judges.judge_claims,
        on_request=True,
    )


def profile(asked: argparse.Namespace) -> Section:
    """Return the section that records two stacks of a scenario with torch's profiler."""
    small = (*settings(*TINY, "model.dtype=float32"), *FEW[2:]) if asked.small else ()
    return Section(
        "profile",
        (
            *(sys.executable, "-m", "accel_bench", "profile", str(HERE / "llama-2-7b-lora.yaml")),
            *("--device", asked.device, "--format", "json", "--results", str(KEPT / "profile")),
            *small,
            *settings(*asked.settings),
        ),
        300,
        judges.judge_profile,
        on_request=True,
    )


def comparison(scenario: str, asked: argparse.Namespace, results: Path) -> Section:
    """Return a section for a plugin's scenario: the next call adds rounds that are missing."""
    small = (*FEW, *settings(*TINY, "model.dtype=bfloat16"), *settings("data.vocab_size=2048"))
    return Section(
        scenario,
        (
            *(sys.executable, "-m", "accel_bench", "run", scenario, "--device", asked.device),
            *("--format", "json", "--resume", "--results", str(results)),
            *(word for stack in asked.only for word in ("--only", stack)),
            *(small if asked.small else ()),
            *(("--rounds", str(asked.rounds)) if asked.rounds else ()),
            *settings(*asked.settings),
        ),
        540,
        judges.judge_comparison,
        on_request=True,
    )


def settings(*pairs: str) -> tuple[str, ...]:
    """Return the arguments with `--set` before each `key=value`."""
    return tuple(word for pair in pairs for word in ("--set", pair))
