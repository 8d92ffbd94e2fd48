"""Run all checks and benchmarks of one GPU, in one command of less than ten minutes.

From the root of a fresh checkout, on a machine with a GPU, torch and transformers:

    python3 -m benchmarks.gpu                        # results in ./gpu-results, or in $OUT if set

Where accel-bench is not installed, the script makes it visible to this Python from the checkout: it
unpacks the wheels of `--wheels` (default `.whl`) and writes what an installer would into `--site`.
For a machine with Python 3.12 that has torch, transformers, accelerate and scipy but cannot reach
an index, fetch 9 MB of wheels beforehand, and take them along (git ignores the folder):

    python3 -m pip download --no-deps --only-binary=:all: --python-version 3.12 \
        --implementation cp --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
        --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
        --platform manylinux_2_24_x86_64 -d .whl \
        pydantic==2.14.3 pydantic_core==2.50.4 annotated-types==0.8.0 typing-inspection==0.4.5 \
        typing_extensions==4.16.0 SQLAlchemy==2.1.9 nvidia-ml-py==13.615.71 psutil==7.2.2 \
        peft==0.21.2 pluggy==1.7.0 typer==0.29.2 rich==15.0.0

Sections are independent: one that fails or takes too long is recorded, and the rest goes on. These
are run only when they are named, since each needs most of a call, or libraries that change every
LoRA stack once they are installed:

    kernels             every plugin that accelerates keeps its contract on the device
    floor               the rates of a large product and of a large copy
    profile             what torch's profiler records of the LoRA step
    profile-parts       a memory snapshot, fields of NVML over time, marks for Nsight (and its
                        report, where nsys is)
    micro               some of the micro-benchmarks' targets by pytest, their gradients checked,
                        with a warm cache and with an empty one
    single-gpu-full, single-gpu-qlora, single-gpu-lora, single-gpu-lora-8b, llama-3-8b-qlora,
    padding-free, quantized-peft
    claims              what these have shown, against the goals: a folder for each, to be published

Their rounds and the claims' folders are kept in `gpu-results`: the same call again, on the same
machine, adds the rounds that it had no time for. Everything that there is then is packed into one
file beside the documents, `everything.tar.gz`, for machines that hand back no more than 8 files of
16 MiB; what profilers have left, which may be larger, lies apart in `traces.tar.gz`, where there is
any. Unpack the first on a fresh machine, so that its folder `works` lies in `gpu-results`, and
rounds add up there too, where driver and number of cores are the same. Results of a version with
another schema are refused: begin with an empty `gpu-results` then. `--only STACK` leaves out all
stacks but that and the baseline. In the order of worth:

    python3 -m benchmarks.gpu correctness floor single-gpu-full single-gpu-lora claims \
        --rounds 1 --only compiled --only fused-loss-compiled --set measure.phase_steps=0 \
        --seconds 480
    python3 -m benchmarks.gpu floor single-gpu-full claims --only fused-loss-compiled \
        --set measure.phase_steps=0
    python3 -m benchmarks.gpu floor single-gpu-lora claims --only fused-loss-compiled \
        --set measure.phase_steps=0
    python3 -m benchmarks.gpu floor padding-free claims --only padding-free \
        --set 'sweep.train.micro_batch_size=[8]' --set measure.phase_steps=0
    python3 -m benchmarks.gpu floor single-gpu-qlora claims --only nf4-fused \
        --set measure.phase_steps=0
    python3 -m benchmarks.gpu floor llama-3-8b-qlora claims
    python3 -m benchmarks.gpu floor single-gpu-lora-8b claims --only fused-loss-compiled \
        --set measure.phase_steps=0
    python3 -m benchmarks.gpu kernels --seconds 590

The first shows in a few minutes what does not compile there, and which stack is the fastest, and
its round counts: `--rounds 1 --set measure.phase_steps=0` scouts and counts, where the calls that
follow have the same `--set`. `--set measure.steps=5` gives experiments of other ids, which count
for no claim. `fused-loss-compiled` leaves the chunks of the loss to Liger: where their products are
too small, `--set stacks.fused-loss-compiled.fused-kernels.loss_chunk=8` is the fallback, from its
first round on, since it changes the id. About 465 s are left of a call for a comparison: five
rounds of two stacks of `single-gpu-full` need about 430, by arithmetic; of `single-gpu-lora-8b`
about 1,200. `kernels` needs more than 540 s: give it a call of its own, with nothing beside it.

They need further wheels: liger-kernel==0.8.5 and bitsandbytes==0.50.2 (43 MB), and for `micro`
pytest==9.2.0, iniconfig==2.3.0, pytest-benchmark==5.3.1, py-cpuinfo2==10.1.1 and pygments==2.21.0,
fetched like the others. The rest is mostly published as source and is built with Python 3.12
(`python3.12 -m pip wheel --no-deps -w .whl ...`); a stack whose plugin lacks a library is skipped
and says so, and one that `--only` names is an error:

    gptqmodel==7.6.0 optimum==2.3.0 Defuser==0.0.28 Device-SMI==0.5.7 LogBar==0.4.15 PyPcre==0.6.4
    TokeNicer==0.0.14 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19

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
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu_sections import KEPT, Section, sections
from benchmarks.gpu_setup import CHECKOUT, is_installed, set_up

SHORT_SECONDS = 60.0
"""A section of at most this long gets its time, whatever those before it would need."""

GRACE_SECONDS = 20.0
"""Time that an interrupted section has for writing its partial results."""

ARCHIVE, TRACES = "everything.tar.gz", "traces.tar.gz"
"""Archives of all documents, rounds and claims, and of what profilers have recorded."""

RECORDED = (".pt.trace.json.gz", ".pickle", ".nsys-rep")
"""Endings of the files of profilers: each may be larger than all rounds."""


@dataclass(frozen=True)
class Outcome:
    """Outcome of a section."""

    name: str
    """Name of the section."""

    passed: bool
    """Whether its document exists and passes its judge."""

    line: str
    """Summary of the document, or the error."""

    seconds: float
    """Duration of the section."""


def main() -> int:
    """Set up, run the sections that fit into the time, write a summary, print a table."""
    asked = parse()
    asked.output.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + asked.seconds
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="accel-bench-gpu-") as folder:
        spare = None if is_installed("accel-bench") else Path(folder) / "site"
        set_up(asked.wheels, asked.site or spare)
        chosen = [section for section in sections(asked, Path(folder)) if is_chosen(section, asked)]
        for number, section in enumerate(chosen):
            print(f"{section.name} ...", file=sys.stderr, flush=True)
            left = deadline - sum(map(kept_free, chosen[number + 1 :]))
            outcomes.append(run_section(section, asked.output, left))
            write_summary(asked, outcomes)
            if section.on_request:
                pack(asked.output)
    print("\n".join(map(row, outcomes)))
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


def is_chosen(section: Section, asked: argparse.Namespace) -> bool:
    """Return whether a section is run: the named ones, else all that need not be named."""
    return section.name in asked.sections if asked.sections else not section.on_request


def kept_free(section: Section) -> float:
    """Return the seconds that are reserved for a section: short ones sum up the others."""
    return section.seconds if section.seconds <= SHORT_SECONDS else 0.0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Path(os.environ.get("OUT") or "gpu-results")
    parser.add_argument("sections", nargs="*", help="leave out all others")
    parser.add_argument("--output", type=Path, default=default, help="folder of the documents")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--only", action="append", default=[], help="stack of a named comparison")
    parser.add_argument("--rounds", type=int, help="rounds of a named comparison")
    parser.add_argument(
        *("--set", "-s"),
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting of a named comparison, as `accel-bench run --set` takes it",
    )
    parser.add_argument("--small", action="store_true", help="only show that the script works")
    parser.add_argument("--seconds", type=float, default=560.0, help="limit for all sections")
    parser.add_argument("--wheels", type=Path, default=CHECKOUT / ".whl")
    parser.add_argument("--site", type=Path, help="folder to set up in (default: a temporary one)")
    return parser.parse_args()


def run_section(section: Section, output: Path, deadline: float) -> Outcome:
    """Run one section within its limit and judge its document. Failures are returned."""
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
    """Run the command of a section, interrupt it after the limit, and return how it ended."""
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


def write_summary(asked: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Write the outcomes so far, so that they survive the end of a lease."""
    summary = {
        "device": asked.device,
        "small": asked.small,
        "python": sys.version.split()[0],
        "torch": metadata.version("torch"),
        "transformers": metadata.version("transformers"),
        "sections": [asdict(outcome) for outcome in outcomes],
    }
    (asked.output / "summary.json").write_text(f"{json.dumps(summary, indent=1)}\n", "utf8")


def pack(output: Path) -> None:
    """Pack all documents, rounds and claims so far into one file, replaced atomically, and what
    profilers have recorded into another.

    Only files of 16 MiB come back from some machines: no trace may cost a round. Caches stay out:
    what compilers keep can be larger than all else.
    """
    members: dict[str, list[tuple[Path, str]]] = {ARCHIVE: [], TRACES: []}
    for folder, name in {output.resolve(): "documents", KEPT: KEPT.name}.items():
        for path in sorted(folder.rglob("*")):
            inner = path.relative_to(folder)
            if path.is_file() and "cache" not in inner.parts and not is_archive(path):
                kept = TRACES if path.name.endswith(RECORDED) else ARCHIVE
                members[kept].append((path, f"{name}/{inner}"))
    for archive, found in members.items():
        if found:
            write_archive(output / archive, found)


def is_archive(path: Path) -> bool:
    """Return whether a file is one that `pack` writes, or has begun to write."""
    return path.name.removeprefix(".") in (ARCHIVE, TRACES)


def write_archive(path: Path, members: Sequence[tuple[Path, str]]) -> None:
    """Write an archive of files by their names in it. What goes wrong is printed."""
    aside = path.with_name(f".{path.name}")
    try:
        with tarfile.open(aside, "w:gz") as archive:
            for file, name in members:
                archive.add(file, name)
        aside.replace(path)
    except OSError as error:
        print(f"{path.name} not packed: {error}", file=sys.stderr)


def row(outcome: Outcome) -> str:
    """Format an outcome as a line of the table."""
    word = "ok" if outcome.passed else "FAILED"
    return f"{outcome.name:16} {word:6} {outcome.seconds:6.1f} s  {outcome.line}"


if __name__ == "__main__":
    # Whoever ends the script lets it end its section, and remove what it has unpacked.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
