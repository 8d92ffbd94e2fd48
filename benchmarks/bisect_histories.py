"""Whom does `accel-bench bisect` blame? Real histories that change nothing, and simulated ones.

Each real history is a repository whose commits change no code; the seconds of all runs are kept, in
the order in which they were measured. The simulated histories draw their noise from these: each
reads on from a place of its own, so that drifts and outliers stay as they were.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, pstdev

from accel_bench_ab.bisect_search import BisectAnswer, Bisection, MoreRounds

from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.documents.base import JsonValue
from accel_bench.store.database import open_store
from benchmarks.command_line import PROGRAM
from benchmarks.entry import Counts, Entry, this_machine

REAL_HISTORIES = 10
"""Histories that are really measured."""

REAL_ROUNDS = 20
"""Most rounds of a comparison in these."""

HISTORIES = 200
"""Simulated histories of each kind."""

VERSIONS, STEP = 64, math.log(1.05)
"""Versions of a history, and the effect of a change as a log-ratio."""

MOST_PROBES = 8
"""Most probes that a history of 64 versions may take."""

FLOOR, MOST_ROUNDS = 0.02, 80
"""Floor, and most rounds of a comparison, as by default."""

PATIENT_ROUNDS = 1280
"""Most rounds of a comparison with which histories of one change are searched again."""

WORK = "print(sum(number * number for number in range(4_000_000)))\n"
"""Program of a history: a third of a second of computation."""

SEED = 31

Machine = dict[str, JsonValue]


def measure_bisect(counts: Counts) -> Iterator[Entry]:
    """Count culprits in unchanged histories, then wrong answers under the noise of their runs."""
    quick = counts != Counts()
    machine = this_machine()
    answers, seconds = Counter[str](), list[float]()
    for number in range(1 if quick else REAL_HISTORIES):
        answer, runs = bisect_unchanged(number, 5 if quick else REAL_ROUNDS)
        answers[answer] += 1
        seconds += runs
    yield Entry(
        name="bisect-unchanged",
        value=float(sum(answers.values()) - answers["none"] - answers["inconclusive"]),
        unit=f"culprits in {sum(answers.values())} real unchanged histories",
        goal=0.0,
        goal_is="at most",
        notes=(describe(answers),),
        samples={"run_seconds": tuple(seconds)},
        machine=machine,
    )
    noise = [math.log(one) for one in seconds]
    for changes in (0, 1, 2):
        yield from _simulated(changes, noise, 4 if quick else HISTORIES, machine)
    *_, patient = _simulated(1, noise, 4 if quick else HISTORIES // 4, machine, PATIENT_ROUNDS)
    yield patient.model_copy(update={"name": f"bisect-right-in-{PATIENT_ROUNDS}-rounds"})


def bisect_unchanged(number: int, rounds: int) -> tuple[str, list[float]]:
    """Search a repository whose commits change no code; return the answer, and seconds of runs."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "history")
        folder.mkdir()
        (folder / "work.py").write_text(WORK, encoding="utf8")
        _git(folder, "init", "-q")
        for commit in range(8):
            (folder / "notes.txt").write_text(f"{number}.{commit}", encoding="utf8")
            _git(folder, "add", "-A")
            _git(folder, "commit", "-q", "-m", f"Note {commit}")
        words = ["--by", "wall", "--rounds", str(rounds), "--format", "json", "-q"]
        command = [*PROGRAM, "bisect", "HEAD~7..HEAD", *words, "--", sys.executable, "work.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise RuntimeError(done.stderr)
        with open_store(folder / "accel_bench_results", write=False) as store:
            found = map(run_throughput, store.results())
            seconds = [one.seconds_per_token for one in found if one]
        return json.loads(done.stdout)["answer"], seconds


def simulate(
    effects: Sequence[float], noise: Callable[[], float], seed: int, rounds: int = MOST_ROUNDS
) -> tuple[BisectAnswer, Bisection]:
    """Search a history whose versions have these log-costs."""
    bisection, order = Bisection(len(effects), FLOOR, rounds), random.Random(seed)
    while isinstance(more := bisection.next(), MoreRounds):
        for _ in range(more.rounds):
            turns = order.sample(more.comparing.versions, len(more.comparing.versions))
            bisection.add(more.comparing, {one: math.exp(noise() + effects[one]) for one in turns})
    return more, bisection


def describe(answers: Counter[str]) -> str:
    """Return `190 culprit, 10 inconclusive`."""
    return ", ".join(f"{number} {answer}" for answer, number in answers.most_common())


def _simulated(
    changes: int,
    noise: Sequence[float],
    histories: int,
    machine: Machine,
    most_rounds: int = MOST_ROUNDS,
) -> Iterator[Entry]:
    """Yield the fractions of wrong and of right answers in histories with so many changes."""
    wanted = ("none", "culprit", "several")[changes]
    answers, rights = Counter[str](), list[float]()
    wrong, probes, runs = list[float](), list[float](), list[float]()
    for seed in range(SEED, SEED + histories):
        draw = random.Random(seed)
        places = draw.sample(range(1, VERSIONS), changes)
        effects = [sum(STEP for one in places if version >= one) for version in range(VERSIONS)]
        answer, bisection = simulate(effects, _reader(noise, draw), seed, most_rounds)
        right = answer.kind == wanted and (changes != 1 or answer.first_bad == places[0])
        answers["right" if right else answer.kind] += 1
        rights.append(float(right))
        wrong.append(float(not right and answer.kind != "inconclusive"))
        probes.append(float(bisection.probes))
        runs.append(float(bisection.runs))
    where = f"in {histories} simulated histories of {changes} changes"
    yield Entry(
        name=f"bisect-wrong-of-{changes}",
        value=sum(wrong) / histories,
        unit=f"fraction of wrong answers {where}",
        goal=0.05,
        goal_is="at most",
        notes=(describe(answers), f"at most {max(probes):.0f} probes of {MOST_PROBES} allowed"),
        samples={"wrong": tuple(wrong), "probes": tuple(probes), "runs": tuple(runs)},
        machine=machine,
    )
    yield Entry(
        name=f"bisect-right-of-{changes}",
        value=sum(rights) / histories,
        unit=f"fraction of right answers {where}",
        goal=None,
        goal_is="at least",
        notes=(
            f"runs of a command scatter by {pstdev(noise):.1%}",
            f"{fmean(runs):,.0f} runs of a search on average",
        ),
        samples={"right": tuple(rights)},
        machine=machine,
    )


def _reader(noise: Sequence[float], draw: random.Random) -> Callable[[], float]:
    """Return a function that reads on in a series, from a random place and around its end."""
    place = draw.randrange(len(noise))

    def read() -> float:
        nonlocal place
        place = (place + 1) % len(noise)
        return noise[place]

    return read


def _git(folder: Path, *arguments: str) -> None:
    names = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *names, *arguments], cwd=folder, check=True)
