"""Judge recommendations by an exhaustive search over tables whose true speeds are known.

A table is made by a seed: stacks at sweep points with true seconds for the start and for a token,
of which some do not fit, train something else or are invalid or imported, though fast. Rounds of
runs are drawn from it with noise between processes and drift between rounds, and pass through the
very code of `accel-bench recommend`. Regret is the true duration of the job as recommended over
that of the best that exhaustive search finds among what fits and trains the same, less 1.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from itertools import count as count_from
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any

from accel_bench_advise.recommendation.candidates import collect_candidates
from accel_bench_advise.recommendation.next_runs import rounds_needed
from accel_bench_advise.recommendation.ranking import Ranked, rank

from accel_bench.analysis.wording import count, percent
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.machine.info import Device
from accel_bench.machine.process_memory import Stage
from accel_bench.result import (
    SKETCH_BUCKETS,
    Provenance,
    RankResult,
    Result,
    Sample,
    Status,
    TensorUpdate,
    WeightUpdate,
    Window,
)
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.uses import Use
from benchmarks.entry import Entry, Request, this_machine

TABLES, QUICK_TABLES = 400, 3
GOAL = 0.02
"""Largest mean regret, and the largest of 95 % of tables."""

NOISES = (0.002, 0.01, 0.03)
"""Standard deviations between processes, of an idle GPU to a shared machine."""

TOKENS = 4096
"""Real tokens of a step."""

DRIFT_OF_NOISE = 3
"""Standard deviations between rounds over those between processes."""

LAYOUT_SHARE = (0.95, 1.15)
"""Between which factors a batch layout changes a stack's seconds of a token."""

STEPS = 6
"""Steps that a made-up run takes, after one of warm-up."""

KINDS = ("same", "same", "same", "same", "other training", "oom", "invalid", "imported")
"""What becomes of stacks, each as likely as any other."""

JOBS = (None, 50, 200, 1000, 20_000)
"""Steps of the job; None where its length is not known."""

PIECE = 20
"""Tables after which an entry is complete so far."""

MOST_COMMANDS = 3
"""Commands of open answers that are carried out, one after the other."""

SESSION = "table"

RECORDED = Path(__file__).parent / "published" / "cpu-recommend-recorded.json"
"""The quickstart on a busy machine: start and seconds per token of each run."""


@dataclass(frozen=True)
class Truth:
    """A stack at a sweep point as it really is."""

    stack: str
    micro_batch_size: int
    kind: str
    start_seconds: float
    seconds_per_token: float

    def job_seconds(self, tokens: float | None) -> float:
        """Return the true seconds of a job, or of a token."""
        if tokens is None:
            return self.seconds_per_token
        return self.start_seconds + tokens * self.seconds_per_token


@dataclass(frozen=True)
class TrueTable:
    """All stacks at all points, the job, and the noise of the machine."""

    rows: tuple[Truth, ...]
    tokens: float | None
    noise: float
    rounds: int = 5

    interleaved: bool = True
    """Whether a round holds all batch layouts; else they ran one after another, and drift is that
    of a layout's round."""


def measure_recommend(asked: Request) -> Iterator[Entry]:
    """Yield mean, 95th percentile and misses of the regret for each level of noise.

    Each is yielded again and again, with more of its tables; those of a known entry are not made
    again.
    """
    many = TABLES if asked.counts.rounds > 1 else QUICK_TABLES
    for noise in NOISES:
        yield from growing(f"noise-{100 * noise:g}", partial(regret_of, noise=noise), many, asked)
    followed = partial(followed_regret_of, noise=NOISES[-1])
    yield from growing(f"noise-{100 * NOISES[-1]:g}-followed", followed, many, asked)
    if _title("recorded") not in asked.known:
        yield _entry("recorded", recorded_regrets())


def growing(
    name: str,
    regret_at: Callable[[int], float],
    many: int,
    asked: Request,
    goal: float | None = GOAL,
) -> Iterator[Entry]:
    """Yield the entry of the first tables, then of more and more of them, by their seeds."""
    known = asked.known.get(_title(name))
    regrets = list(known.samples["regret"]) if known else []
    for start in range(len(regrets), many, PIECE):
        regrets += [regret_at(seed) for seed in range(start, min(start + PIECE, many))]
        yield _entry(name, regrets, goal)


def recorded_regrets() -> list[float]:
    """Return regrets on the recorded table, whose truth is the mean of all of its rounds.

    Recommended is from each four rounds of the five, for jobs of several lengths.
    """
    rows = json.loads(RECORDED.read_text(encoding="utf8"))["rows"]
    rounds = range(len(rows[0]["seconds_per_token"]))
    found = []
    for steps in JOBS:
        tokens = float(steps * TOKENS) if steps else None
        truth = TrueTable(tuple(_recorded(row, rounds) for row in rows), tokens, 0.0)
        for kept in combinations(rounds, len(rounds) - 1):
            runs = [
                make_run(_recorded(row, [number]), number, 1 + number * len(rows) + place, 1.0)
                for number in kept
                for place, row in enumerate(rows)
            ]
            ranked = rank(collect_candidates(runs, {SESSION: "baseline"}), tokens)
            found.append(regret(truth, ranked))
    return found


def _recorded(row: Mapping[str, Any], rounds: Iterable[int]) -> Truth:
    """Return a recorded row as the geometric mean of some rounds."""
    start, second = (
        math.exp(fmean(math.log(row[key][number]) for number in rounds))
        for key in ("start_seconds", "seconds_per_token")
    )
    return Truth(row["stack"], row["micro_batch_size"], "same", start, second)


def _title(name: str) -> str:
    return f"recommend-{name}"


def _entry(name: str, regrets: Sequence[float], goal: float | None = GOAL) -> Entry:
    misses = [one for one in regrets if one > GOAL]
    cut = quantiles(regrets, n=20)[-1] if len(regrets) > 1 else regrets[0]
    return Entry(
        name=_title(name),
        value=cut,
        unit="regret, 95th percentile",
        goal=goal,
        goal_is="at most",
        notes=(
            f"mean {percent(fmean(regrets))}, median {percent(median(regrets))}, largest "
            f"{percent(max(regrets))}, above {percent(GOAL)} in {len(misses)} of "
            f"{count(len(regrets), 'table')}",
        ),
        samples={"regret": tuple(regrets)},
        machine=this_machine(),
    )


def regret_of(seed: int, noise: float) -> float:
    """Return the regret of the recommendation on a table."""
    table = make_table(seed, noise)
    return regret(table, recommended(table, seed))


def followed_regret_of(seed: int, noise: float) -> float:
    """Return the regret after the commands of open answers were carried out, at most so many."""
    table, draw = make_table(seed, noise), random.Random(f"more runs of {seed}")
    runs = list(draw_runs(table, random.Random(f"runs of {seed}")))
    ranked = _ranked(table, runs)
    for number in range(MOST_COMMANDS):
        best, other = ranked.best, ranked.runner_up
        if best is None or other is None or ranked.sure:
            break
        done = len(best.runs.speeds)
        more = rounds_needed(best, other, table.tokens)[0] - done
        if more <= 0:
            break
        layouts = {one.experiment.scenario.train.micro_batch_size for one in (best, other)}
        stacks = {"baseline", best.row.stack, other.row.stack}
        rows = [r for r in table.rows if r.micro_batch_size in layouts and r.stack in stacks]
        asked = replace(table, rows=tuple(rows), rounds=more, interleaved=True)
        runs += draw_runs(asked, draw, number + 1, done)
        ranked = _ranked(table, runs)
    return regret(table, ranked)


def make_table(seed: int, noise: float, rounds: int = 5) -> TrueTable:
    """Return a table of 2 to 6 stacks at 1 to 3 batch layouts.

    The baseline can be used at the smallest of them, and at the largest it may be out of memory.
    """
    draw = random.Random(seed)
    factors = [1.0, *(math.exp(draw.gauss(0.05, 0.25)) for _ in range(draw.randint(1, 5)))]
    kinds = ["same", *(draw.choice(KINDS) for _ in factors[1:])]
    late = [0.0, *(draw.choice((0.0, 0.0, 15.0, 60.0)) for _ in factors[1:])]
    layouts = sorted(draw.sample((1, 2, 4, 8), draw.randint(1, 3)))
    too_large = layouts[-1] if len(layouts) > 1 and draw.random() < 0.25 else None
    start, second = draw.uniform(5, 30), draw.uniform(0.1, 2.0) / TOKENS
    rows = [
        Truth(
            stack=f"stack-{number}" if number else "baseline",
            micro_batch_size=layout,
            kind="oom" if too_large == layout and not number else kind,
            start_seconds=start + wait,
            seconds_per_token=second / factor * draw.uniform(*LAYOUT_SHARE),
        )
        for layout in layouts
        for number, (factor, kind, wait) in enumerate(zip(factors, kinds, late, strict=True))
    ]
    steps = draw.choice(JOBS)
    tokens = float(steps * TOKENS) if steps else None
    return TrueTable(tuple(rows), tokens, noise, rounds, interleaved=draw.random() < 0.5)


def recommended(table: TrueTable, seed: int) -> Ranked:
    """Return the ranking of the runs that are drawn from a table."""
    return _ranked(table, list(draw_runs(table, random.Random(f"runs of {seed}"))))


def _ranked(table: TrueTable, runs: Sequence[Result]) -> Ranked:
    baselines = dict.fromkeys((run.session for run in runs), "baseline")
    return rank(collect_candidates(runs, baselines), table.tokens)


def regret(table: TrueTable, ranked: Ranked) -> float:
    """Return the regret of a ranking; infinite for what does not fit or trains something else."""
    valid = [row for row in table.rows if row.kind == "same"]
    best = min(row.job_seconds(table.tokens) for row in valid)
    if ranked.best is None:
        return math.inf
    chosen = ranked.best.experiment
    layout = chosen.scenario.train.micro_batch_size
    found = [
        row for row in valid if (row.stack, row.micro_batch_size) == (chosen.stack.name, layout)
    ]
    return found[0].job_seconds(table.tokens) / best - 1 if found else math.inf


def draw_runs(
    table: TrueTable, draw: random.Random, session: int = 0, first: int = 0
) -> Iterator[Result]:
    """Yield a run of each row in each round.

    A later session has a number, and its rounds begin with `first`.
    """
    clock = count_from(1)
    for number, row, slower in draw_slowdowns(table, draw):
        yield make_run(row, first + number, next(clock), slower, session)


def draw_slowdowns(table: TrueTable, draw: random.Random) -> Iterator[tuple[int, Truth, float]]:
    """Yield the round, the row and how many times as slow it is in each run, in their order.

    Drift is that of the round, noise the process's.
    """
    for rows in together(table):
        for number in range(table.rounds):
            drift = draw.gauss(0, DRIFT_OF_NOISE * table.noise)
            for row in rows:
                yield number, row, math.exp(drift + draw.gauss(0, table.noise))


def together(table: TrueTable) -> list[tuple[Truth, ...]]:
    """Return the rows that ran in the same rounds: all, or those of each layout."""
    if table.interleaved:
        return [table.rows]
    layouts = dict.fromkeys(row.micro_batch_size for row in table.rows)
    return [tuple(r for r in table.rows if r.micro_batch_size == one) for one in layouts]


def make_run(row: Truth, number: int, clock: int, slower: float, session: int = 0) -> Result:
    """Return a run of a row, so many times as slow as it really is."""
    experiment = make_experiment(row)
    status = {"oom": Status.OOM, "invalid": Status.INVALID}.get(row.kind, Status.OK)
    imported = Provenance(origin="imported", file="old.csv", format="fms-acceleration")
    return Result(
        run_id=f"{experiment.id}-{session}-{number}",
        session=f"{SESSION}-{session}" if session else SESSION,
        experiment=experiment,
        round=number,
        position=clock,
        status=status,
        started_at=f"2026-01-{session + 1:02}T{_time(clock)}Z",
        seconds=0.5,
        ranks=() if status is Status.OOM else (_rank(row, experiment, slower),),
        provenance=imported if row.kind == "imported" else Provenance(),
    )


def _time(clock: int) -> str:
    return f"{clock // 3600:02}:{clock // 60 % 60:02}:{clock % 60:02}"


def make_experiment(row: Truth) -> Experiment:
    """Return the experiment of a row: all layouts have one global batch."""
    identity: dict[str, JsonValue] = {"uses": [row.stack], "layout": row.micro_batch_size}
    train = {"micro_batch_size": row.micro_batch_size, "global_batch_size": 8}
    plugins = () if row.stack == "baseline" else (Use(use=row.stack),)
    return Experiment(
        id=digest(identity),
        scenario=Scenario.model_validate(
            {"name": "table", "train": train, "resources": {"device": "cuda"}}
        ),
        stack=Stack(name=row.stack, uses=plugins),
        sweep={"train.micro_batch_size": row.micro_batch_size},
        identity=identity,
    )


def _rank(row: Truth, experiment: Experiment, slower: float) -> RankResult:
    seconds = row.seconds_per_token * TOKENS * slower
    size = 2.0 if row.kind == "other training" else 1.0
    sketch = (size,) * SKETCH_BUCKETS
    samples = [_sample(step, seconds, experiment) for step in range(1 + STEPS)]
    return RankResult(
        rank=0,
        status=Status.OK,
        device=Device(type="cuda", name="NVIDIA H100 80GB HBM3", uuid="GPU-1"),
        window=Window(
            started=0.0,
            ended=seconds * STEPS,
            samples=tuple(samples[1:]),
            warmup=tuple(samples[:1]),
        ),
        stages=(Stage(name="warm-up", seconds=row.start_seconds * slower + seconds),),
        update=WeightUpdate(
            steps=1 + STEPS,
            trained_tensors=1,
            trained_elements=100,
            tensors={"head": TensorUpdate(elements=100, sketch=sketch)},
            weights=sketch,
            seconds=0.01,
        ),
    )


def _sample(step: int, seconds: float, experiment: Experiment) -> Sample:
    batch = experiment.scenario.train.global_batch_size or 1
    return Sample(
        step=step,
        seconds=seconds,
        sequences=batch,
        processed_tokens=TOKENS,
        real_tokens=TOKENS,
        supervised_tokens=TOKENS - batch,
        loss=5.0 - 0.1 * step,
    )
