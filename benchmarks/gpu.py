"""Everything worth knowing from one GPU, in one command of less than ten minutes.

From the root of a fresh checkout, on a machine with a GPU, torch and transformers:

    python3 -m benchmarks.gpu                        # results in ./gpu-results, or in $OUT if set

Where accel-bench is not installed, the script makes it visible to this Python from the checkout: it
unpacks the wheels of `--wheels` (default `.whl`) and writes what an installer would into `--site`.
For a machine with Python 3.12 that has torch, transformers, accelerate and scipy but cannot reach
an index, fetch 9 MB of wheels beforehand, and let them travel with the checkout:

    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 -d .whl \
        pydantic==2.14.3 pydantic_core==2.50.4 annotated-types==0.8.0 typing-inspection==0.4.5 \
        typing_extensions==4.16.0 SQLAlchemy==2.1.9 nvidia-ml-py==13.615.71 psutil==7.2.2 \
        peft==0.21.2 pluggy==1.7.0 typer==0.29.2 rich==15.0.0

Sections are independent: one that fails or takes too long is recorded, and the rest goes on.
`quantized-peft` is run only when it is named, in a call of its own: it needs the time, and its
libraries, once installed, change every LoRA stack. Fetch bitsandbytes==0.50.2 like the others (43
MB), and build the rest with Python 3.12 (`python3.12 -m pip wheel --no-deps -w .whl ...`), since
much of it is only published as source; a stack whose plugin lacks a library is skipped and says so:

    gptqmodel==7.6.0 optimum==2.3.0 Defuser==0.0.28 Device-SMI==0.5.7 LogBar==0.4.15 PyPcre==0.6.4
    TokeNicer==0.0.14 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19

Its rounds are kept in `gpu-results/quantized`; the same command again adds the rounds that a call
had no time for.
`--device cpu --small` runs the same script on any machine, to see that it works.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu_setup import CHECKOUT, set_up

HERE = CHECKOUT / "benchmarks"

CPU_LIMIT_BYTES = 8 * 2**30
"""Address space of the out-of-memory section on a CPU, where the system would kill, not refuse."""

GRACE_SECONDS = 20.0
"""Time that an interrupted section has for writing what it knows."""


@dataclass(frozen=True)
class Section:
    """One thing to find out, by a command that prints a JSON document."""

    name: str
    """Its document is NAME.json."""

    command: Sequence[str]
    """What to run."""

    seconds: float
    """Limit; the command is then interrupted."""

    judge: Callable[[Any], tuple[bool, str]]
    """Whether the document is as it should be, and a line about it."""

    limit_bytes: int | None = None
    """Limit of its address space."""

    on_request: bool = False
    """Whether it is only run when it is named."""


@dataclass(frozen=True)
class Outcome:
    """How a section went."""

    name: str
    """Which."""

    passed: bool
    """Whether its document is there and as it should be."""

    line: str
    """What it found, or what went wrong."""

    seconds: float
    """How long it took."""


def main() -> int:
    """Set up, run the sections that fit into the time, write a summary, print a table."""
    asked = parse()
    set_up(asked.wheels, asked.site)
    asked.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + asked.seconds
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for section in sections(asked, Path(folder)):
            if section.name not in asked.sections and (asked.sections or section.on_request):
                continue
            print(f"{section.name} ...", file=sys.stderr, flush=True)
            outcomes.append(carry_out(section, asked.output, deadline))
            write_summary(asked, outcomes)
    print("\n".join(map(row, outcomes)))
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("OUT") or "gpu-results")
    parser.add_argument("sections", nargs="*", help="leave out all others")
    parser.add_argument("--output", type=Path, default=default, help="folder of the documents")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="only show that the script works")
    parser.add_argument("--seconds", type=float, default=560.0, help="limit for all sections")
    parser.add_argument("--wheels", type=Path, default=CHECKOUT / ".whl")
    parser.add_argument("--site", type=Path, help="folder to set up in (default: a temporary one)")
    return parser.parse_args()


def sections(asked: argparse.Namespace, folder: Path) -> list[Section]:
    """What is run, most telling first: the clock may run out on the last."""
    python, device = sys.executable, ("--device", asked.device)
    on_cpu, small = asked.device == "cpu", asked.small
    run = (python, "-m", "accel_bench", "run")
    printed = (*device, "--format", "json", "--results", str(folder))
    few = ("--repeats", "1", "--set", "measure.steps=3", "--set", "measure.warmup=1")
    tiny_work = (
        *("model.id=tiny-llama-cpu", "model.dtype=float32", "data.sequence_length=64"),
        "resources.threads=1",
    )
    tiny = [word for one in tiny_work for word in ("--set", one)]
    short = ("--small",) if small else ()
    names = ("harness", "synchronisations", "engine", "hf-trainer")
    large = () if on_cpu else ("engine-large",)
    return [
        Section(
            "correctness",
            (python, "-m", "benchmarks.gpu_check", asked.device),
            90,
            judge_correctness,
        ),
        Section(
            "llama-2-7b-lora",
            (*run, str(HERE / "llama-2-7b-lora.yaml"), *printed, *((*few, *tiny) if small else ())),
            240,
            judge_comparison,
        ),
        Section(
            "numbers",
            (python, "-m", "benchmarks.gpu_numbers", asked.device, str(folder), *short),
            90,
            judge_numbers,
        ),
        Section(
            "overhead",
            (python, "-m", "benchmarks", *names, *large, *device, *(["--quick"] if small else [])),
            180,
            judge_overhead,
        ),
        Section(
            "out-of-memory",
            (*run, str(HERE / "out-of-memory.yaml"), *printed),
            120,
            judge_out_of_memory,
            CPU_LIMIT_BYTES if on_cpu else None,
        ),
        Section(
            "quickstart",
            (*run, "quickstart", *printed, *(few if small else ("--repeats", "5"))),
            420,
            judge_comparison,
        ),
        Section(
            "quantized-peft",
            (
                *(*run, "quantized-peft", *device, "--format", "json", "--resume"),
                *("--results", str(CHECKOUT / "gpu-results" / "quantized")),
                *((*few, *tiny, "--set", "model.dtype=bfloat16") if small else ()),
            ),
            540,
            judge_comparison,
            on_request=True,
        ),
    ]


def carry_out(section: Section, output: Path, deadline: float) -> Outcome:
    """Run one section within its limit and judge its document. Never raises for its failure."""
    started = time.monotonic()
    limit = min(section.seconds, deadline - started - GRACE_SECONDS)
    document = output / f"{section.name}.json"
    with contextlib.ExitStack() as files:
        log = files.enter_context((output / "log.txt").open("ab"))
        log.write(f"\n== {section.name}\n".encode())
        log.flush()
        if limit <= 0:
            return Outcome(section.name, False, "no time was left", 0.0)
        printed = files.enter_context(document.open("wb"))
        ended = run_command(section, printed, log, limit)
    try:
        passed, line = section.judge(json.loads(document.read_bytes()))
    except (ValueError, LookupError, TypeError) as error:
        passed, line = False, f"{ended}; no document: {type(error).__name__}: {error}; see log.txt"
    else:
        line = line if passed else f"{line} ({ended}; see log.txt)"
    return Outcome(section.name, passed, line, round(time.monotonic() - started, 1))


def run_command(section: Section, printed: Any, log: Any, limit: float) -> str:
    """Run the command of a section; interrupt it after the limit; say how it ended."""
    process = subprocess.Popen(
        section.command,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=printed,
        stderr=log,
        start_new_session=True,
    )
    if section.limit_bytes is not None:
        limits = (section.limit_bytes, section.limit_bytes)
        resource.prlimit(process.pid, resource.RLIMIT_AS, limits)
    try:
        return f"exit code {process.wait(limit)}"
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
        return f"interrupted after {limit:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def judge_correctness(document: Any) -> tuple[bool, str]:
    """The harness waits for nothing in the window, and the loss falls."""
    passed = document["loss_falls"] and document["harness_adds_synchronisations"] == 0
    line = (
        f"{document['device']}: loss {document['loss_first']:.3f} -> {document['loss_last']:.3f}; "
        f"synchronisations in the window: {document['in_window']} by the stopwatch, "
        f"{document['implicit_engine']} with the engine, {document['implicit_bare']} without; "
        f"in error mode: {document['error_mode']}"
    )
    return passed, line


def judge_comparison(document: Any) -> tuple[bool, str]:
    """Every stack has run, or could not be asked to."""
    rows = document["experiments"]
    passed = bool(rows) and all(one["status"] in ("ok", "degraded", "skipped") for one in rows)
    return passed, "; ".join(map(told_of, rows))


def told_of(one: Any) -> str:
    """What one row of a comparison says, in short."""
    speed, loss, memory = one["tokens_per_second"], one["loss"], one["peak_memory_bytes"]
    words = [f"{one['stack']}: {one['status']}"]
    if speed and loss and one["ratio"]:
        words.append(f"{speed['median']:,.0f} tokens/s ({one['ratio']['median']:.3f}x)")
        words.append(f"loss {loss['first']:.3f} -> {loss['last']:.3f}")
    if memory:
        words.append(f"{memory / 2**30:.2f} GiB")
    return ", ".join([*words, *(one["reasons"] if not speed else ())])


def judge_numbers(document: Any) -> tuple[bool, str]:
    """On a GPU every ratio is known and lies where it should; on a CPU that is nobody's claim."""
    figures = document["figures"]
    wrong = [one for one in figures if one["met"] is False]
    missing = [one for one in figures if one["met"] is None]
    names = list(dict.fromkeys(one["name"] for one in figures))
    told = [f"{name} {span_of([one for one in figures if one['name'] == name])}" for name in names]
    told += [f"{one['subject']}: {one['name']} is {one['value']:.4g}: WRONG" for one in wrong]
    unknown = dict.fromkeys(f"not measured: {one['name']} ({one['reason']})" for one in missing)
    passed = bool(figures) and (document["device_type"] == "cpu" or not (wrong or missing))
    return passed, "; ".join([*told, *unknown, *document["problems"]])


def span_of(figures: Sequence[Any]) -> str:
    """`0.98 to 0.99`, of those values that are known."""
    values = [one["value"] for one in figures if one["value"] is not None]
    return f"{min(values):.4g} to {max(values):.4g}" if values else "unknown"


def judge_overhead(document: Any) -> tuple[bool, str]:
    """Goals that are missed are reported; only a benchmark that broke is a failure."""
    told = [
        f"{entry['name']} {entry['value']:.4g} {entry['unit']}"
        + {True: " (met)", False: f" (goal {entry['goal']} MISSED)", None: ""}[entry["met"]]
        for entry in document["entries"]
    ]
    told += [f"{name} FAILED: {error}" for name, error in document["failed"].items()]
    return bool(told) and not document["failed"], "; ".join(told)


def judge_out_of_memory(document: Any) -> tuple[bool, str]:
    """The run ended as out of memory, and nothing else was claimed of it."""
    one = document["experiments"][0]
    return one["status"] == "oom", f"status {one['status']}: {'; '.join(one['reasons'])}"


def write_summary(asked: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Write how everything went so far, so that an ended lease leaves something behind."""
    summary = {
        "device": asked.device,
        "small": asked.small,
        "python": sys.version.split()[0],
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "sections": [asdict(outcome) for outcome in outcomes],
    }
    (asked.output / "summary.json").write_text(f"{json.dumps(summary, indent=1)}\n", "utf8")


def row(outcome: Outcome) -> str:
    """One line of the table."""
    word = "ok" if outcome.passed else "FAILED"
    return f"{outcome.name:16} {word:6} {outcome.seconds:6.1f} s  {outcome.line}"


if __name__ == "__main__":
    sys.exit(main())
