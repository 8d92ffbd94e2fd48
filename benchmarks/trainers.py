"""What `accel-bench ab` says of real trainers: alike commands, a slower step, and their own log.

The trainers are those of its tests; `ACCEL_BENCH_TRAINERS` is the folder of an environment that has
their libraries (`make trainers`). Those whose libraries are missing are left out, by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from accel_bench_ab.launch import command_environment
from accel_bench_ab.record import observe

from accel_bench.testing import run_program
from benchmarks.entry import Counts, Entry, Request, this_machine

SCRIPTS = Path(__file__).parents[1] / "plugins" / "ab" / "tests" / "trainers"
LOOP = Path(__file__).with_name("timed_loop.py")

TRAINERS: Mapping[str, str] = {
    "bare": "torch",
    "accelerated": "accelerate",
    "lightning_loop": "lightning",
    "hf_trainer": "transformers",
    "sft": "trl",
    "dpo": "trl",
}
"""Library that each trainer needs, by the name of its script."""

FIND = "from importlib.util import find_spec as f; import sys; print(*filter(f, sys.argv[1:]))"
"""Program that prints which of some libraries are installed."""

STEPS, BATCH, ACCUMULATION = 30, 4, 2
"""Optimizer steps of a run, samples of a micro-batch, and micro-batches of a step."""

SLOWER, STEP_SECONDS, SLOW_STEPS = 0.03, 0.1, 20
"""Slow-down that is planted, seconds that each step sleeps beside its work, and steps of a run."""

SLOWER_NAME, OWN_LOG = "trainers-slower-3", "trainers-own-log"
"""Names of the entries beside those of the trainers."""


def measure_trainers(asked: Request) -> Iterator[Entry]:
    """Compare each trainer with itself, then a step with one that is 3 % longer.

    Sessions of all trainers alternate, and go on after those that are measured already.
    """
    counts, quick = asked.counts, asked.counts != Counts()
    if SLOWER_NAME not in asked.known:
        yield _slower(1 if quick else 5)
    if OWN_LOG not in asked.known:
        yield _own_log(counts.rounds)
    entries = dict(asked.known)
    for session in range(1 if quick else counts.identical_pairs // 2):
        for trainer in _trainers():
            name = f"trainers-identical-{trainer}"
            known = entries.get(name)
            if known is None or len(known.samples["alarms"]) <= session:
                entries[name] = _identical(name, trainer, known, counts.process_rounds)
                yield entries[name]


def _identical(name: str, trainer: str, known: Entry | None, rounds: int) -> Entry:
    """Return an entry with one more session, and whether it tells two equal commands apart."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(SCRIPTS / f"{trainer}.py")
        run = [python(), script, *map(str, (STEPS, BATCH, ACCUMULATION)), "out"]
        row, _ = compared(folder, [run, run], "--rounds", str(rounds))
    said = [row["verdict"], row["loss_verdict"], row["update_verdict"]]
    alarms = [*(known.samples["alarms"] if known else ())]
    alarms.append(float(bool({*said} & {"better", "worse", "different"})))
    words = known.notes[1:] if known else ()
    return Entry(
        name=name,
        value=fmean(alarms),
        unit="fraction of sessions that tell two equal commands apart",
        goal=0.01,
        goal_is="at most",
        notes=(
            f"{len(alarms)} sessions of {rounds} rounds",
            *sorted({*words, "speed {}, loss {}, update {}".format(*said)}),
        ),
        samples={"alarms": tuple(alarms)},
        machine=this_machine(),
    )


def _slower(sessions: int) -> Entry:
    """Count the sessions that find a step of 3 % more, and the rounds that they took."""
    machine = this_machine()
    loop = [python(), str(LOOP), str(SLOW_STEPS)]
    found, rounds = [], []
    for _ in range(sessions):
        with tempfile.TemporaryDirectory() as folder:
            both = [[*loop, str(STEP_SECONDS)], [*loop, str(STEP_SECONDS * (1 + SLOWER))]]
            row, _ = compared(folder, both, "--rounds", "auto", "--within", "10min")
        found.append(float(row["verdict"] == "worse"))
        rounds.append(float(row["rounds"]))
    return Entry(
        name=SLOWER_NAME,
        value=fmean(found),
        unit="fraction of sessions that call a step that is 3 % longer slower",
        goal=0.95,
        goal_is="at least",
        notes=(f"{sessions} sessions, {fmean(rounds):.1f} rounds on average, 12 at most",),
        samples={"found": tuple(found), "rounds": tuple(rounds)},
        machine=machine,
    )


def _own_log(rounds: int) -> Entry:
    """Compare the observer's step times with the clock of the loop itself, in the same run."""
    machine = this_machine()
    ratios = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            records = Path(folder, "observed")
            records.mkdir()
            variables = {**os.environ, "OMP_NUM_THREADS": "1"}
            done = subprocess.run(
                [python(), str(LOOP), str(SLOW_STEPS), "0.02"],
                env=command_environment(variables, records, Path(folder, "no-page"), observed=True),
                capture_output=True,
                text=True,
                check=True,
            )
            ended = [step.ended for step in observe(records).steps]
        own = json.loads(done.stdout)
        if len(ended) != len(own):
            raise RuntimeError(f"{len(ended)} of {len(own)} steps were seen")
        ratios.append((ended[-1] - ended[0]) / (own[-1] - own[0]))
    return Entry(
        name=OWN_LOG,
        value=max(abs(one - 1) for one in ratios),
        unit="largest relative distance of the observed time of all steps from the loop's own",
        goal=0.01,
        goal_is="at most",
        samples={"observed_over_own": tuple(ratios)},
        machine=machine,
    )


def compared(
    folder: str, commands: Sequence[Sequence[str]], *options: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Run a session; return the second command's row, and the whole document."""
    words = [word for command in commands for word in ("--", *command)]
    more = ("--results", str(Path(folder, "results")), "--format", "json", "--quiet")
    environment = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = run_program("ab", *options, *more, *words, folder=Path(folder), environment=environment)
    if not done.stdout:
        raise RuntimeError(done.stderr[-2000:])
    document = json.loads(done.stdout)
    return document["experiments"][1], document


def python() -> str:
    """Return the interpreter of the trainers' environment, else this one."""
    folder = os.environ.get("ACCEL_BENCH_TRAINERS")
    return str(Path(folder).absolute() / "bin" / "python") if folder else sys.executable


def _trainers() -> list[str]:
    """Return the trainers whose libraries that interpreter has."""
    asked = [python(), "-c", FIND, *sorted({*TRAINERS.values()})]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    return [name for name, library in TRAINERS.items() if library in done.stdout.split()]
