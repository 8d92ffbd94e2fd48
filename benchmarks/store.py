"""Measure the store at many rows: look-up, comparison, filter and aggregate, insert, listing.

Rows are made of one result of the given number of steps, whose derived columns are varied; they are
inserted many at once, and all that is timed goes through the store as the program uses it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from sqlalchemy import insert

from accel_bench.analysis.compare import compare_stored
from accel_bench.documents.base import JsonValue
from accel_bench.documents.canonical import digest
from accel_bench.machine.info import Device
from accel_bench.result import RankResult, Result, Sample, Status, Window
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.store.database import SessionRecord, Store, open_store
from accel_bench.store.queries import condition_of, group_runs
from accel_bench.store.records import RunRecord, run_record
from accel_bench.store.rows import with_checksum
from accel_bench.store.schema import DOCUMENTS, RUNS, SAMPLES
from accel_bench.store.selection import select_pairs
from accel_bench.store.sqlite import FILE_NAME
from benchmarks.entry import Counts, Entry, this_machine

ROWS, LISTED_ROWS, CORRUPT_ROWS, QUICK_ROWS = 1_000_000, 10_000, 300_000, 2_000
AT_ONCE = 5_000
STEPS = 20
GOALS = {"report": 10.0, "cost": 3.0, "pivot": 3.0, "summary": 3.0, "list-corrupt": 10.0}
"""Processor seconds of commands that read more than columns."""

PEAK = 150.0
"""Megabytes of `cost`, `pivot` and `summary`."""

SCENARIOS, STACKS, ROUNDS = 100, 10, 50


def measure_store(counts: Counts) -> list[Entry]:
    """Measure a store of a million runs on SQLite, commands on ten thousand, and corrupt rows."""
    whole = (ROWS, LISTED_ROWS, CORRUPT_ROWS)
    many, few, bad = whole if counts.rounds > 1 else [QUICK_ROWS] * len(whole)
    machine = this_machine()
    with tempfile.TemporaryDirectory(prefix="accel-bench-store-") as root:
        listed, corrupt, large = (Path(root, name) for name in ("listed", "corrupt", "large"))
        fill(listed, few, whole=True)
        entries = list(_commands(listed, few, machine))
        fill(corrupt, bad)
        with closing(sqlite3.connect(corrupt / FILE_NAME)) as database, database:
            database.execute("UPDATE runs SET checksum = 'x' || substr(checksum, 2)")
        entries += _command("list-corrupt", ["results", "list"], corrupt, bad, machine)
        fill(large, many)
        with open_store(large, write=True) as store:
            entries += _queries(store, many, machine)
    return entries


def _commands(folder: Path, rows: int, machine: dict[str, JsonValue]) -> Iterator[Entry]:
    """Yield processor seconds of whole commands, and the size of the page that `report` writes."""
    page = folder / "page.html"
    pair = [f"run-{number:07}" for number in (1, 2)]
    commands = {
        "list": ["results", "list"],
        "compare": ["compare", *pair],
        "audit": ["results", "check"],
        "cost": ["results", "cost", "--price", "3"],
        "pivot": ["results", "pivot"],
        "summary": ["results", "summary"],
        "report": ["report", "--where", "round >= 0", "--html", str(page)],
    }
    for name, command in commands.items():
        yield from _command(name, command, folder, rows, machine)
    yield Entry(
        name=f"store-report-size-{rows}",
        value=page.stat().st_size / 1e6,
        unit="MB",
        goal=10.0,
        goal_is="at most",
        samples={},
        machine=machine,
    )


def _command(
    name: str, command: list[str], folder: Path, rows: int, machine: dict[str, JsonValue]
) -> Iterator[Entry]:
    """Yield processor seconds of a command, and the peak of one that reads every run."""
    used = [_used(command, folder) for _ in range(3)]
    clocks, processors, peaks = zip(*used, strict=True)
    yield Entry(
        name=f"store-{name}-{rows}",
        value=median(processors),
        unit="processor seconds",
        goal=GOALS.get(name, 2.0),
        goal_is="at most",
        samples={"processor_seconds": processors, "clock_seconds": clocks},
        machine=machine,
    )
    if name in ("cost", "pivot", "summary"):
        yield Entry(
            name=f"store-{name}-peak",
            value=max(peaks),
            unit="MB",
            goal=PEAK,
            goal_is="at most",
            samples={"megabytes": peaks},
            machine=machine,
        )
    if name == "summary":
        yield _over_scan(processors, folder, machine)


USED = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e6]))
sys.exit(code)
"""
"""A small program that runs another one: the peak of a process includes the one that started it."""


def _used(command: list[str], folder: Path) -> tuple[float, float, float]:
    """Return wall-clock and processor seconds of a command, and the megabytes of its peak."""
    environment = {**os.environ, "ACCEL_BENCH_RESULTS": str(folder)}
    started = time.perf_counter()
    program = [sys.executable, "-c", USED, sys.executable, "-m", "accel_bench", *command]
    done = subprocess.run(program, env=environment, check=True, stdout=subprocess.PIPE)
    seconds, megabytes = json.loads(done.stdout)
    return time.perf_counter() - started, seconds, megabytes


def _over_scan(processors: tuple[float, ...], folder: Path, machine: dict[str, JsonValue]) -> Entry:
    """Return the seconds of `summary` over those of parsing the same rows alone."""
    scans = tuple(_scan_seconds(folder) for _ in range(3))
    return Entry(
        name="store-summary-over-scan",
        value=median(processors) / median(scans),
        unit="ratio",
        goal=None,
        goal_is="at most",
        samples={"processor_seconds": processors, "scan_processor_seconds": scans},
        machine=machine,
    )


def _scan_seconds(folder: Path) -> float:
    """Return processor seconds of reading all rows in plain SQL and parsing what is JSON there."""
    query = (
        "SELECT runs.*, documents.content, samples.content FROM runs JOIN documents USING (run_id)"
        " JOIN samples USING (run_id) ORDER BY experiment_id, stack, started_at"
    )
    started = time.process_time()
    with closing(sqlite3.connect(folder / FILE_NAME)) as database:
        for row in database.execute(query):
            for content in row[-2:]:
                json.loads(zlib.decompress(content))
    return time.process_time() - started


def _queries(store: Store, rows: int, machine: dict[str, JsonValue]) -> Iterator[Entry]:
    """Yield milliseconds of questions to an open store, each asked of other rows."""
    places = [(number * 7919) % (rows - 1) for number in range(40)]

    def look_up(place: int) -> None:
        assert len(store.find(f"run-{place:07}")) == 1

    def compare_two(place: int) -> None:
        ((left, right),) = select_pairs(f"run-{place:07}", f"run-{place + 1:07}", store)
        compare_stored(left, right)

    def aggregate(place: int) -> None:
        work = f"work-{place // (STACKS * ROUNDS) % SCENARIOS}"
        words = f"scenario = {work} and train.micro_batch_size >= 4 and status = ok"
        assert group_runs(store, ["stack"], [condition_of(store, words)])

    def aggregate_all(place: int) -> None:
        assert len(group_runs(store, ["stack"])) == STACKS

    template = make_run(0)
    store.add_session(make_session("inserted"))

    def add(place: int) -> None:
        changes = {"run_id": f"new-{place}", "session": "inserted"}
        store.add(template.model_copy(update=changes))

    yield _timed("store-look-up", look_up, places, (10.0, 0.5), machine)
    yield _timed("store-compare-two", compare_two, places, (10.0, 0.5), machine)
    yield _timed("store-filter-and-aggregate", aggregate, places, (200.0, 0.5), machine)
    yield _timed("store-aggregate-all", aggregate_all, places[:3], (None, 0.5), machine)
    yield _timed("store-insert", add, [*range(300)], (5.0, 0.95), machine)


def _timed(
    name: str,
    question: Callable[[int], None],
    places: list[int],
    goal: tuple[float | None, float],
    machine: dict[str, JsonValue],
) -> Entry:
    """Return a quantile of the milliseconds that a question takes; `goal` is the most, and which.

    The first two are not counted: they import and compile.
    """
    samples = []
    for place in (*places[:2], *places) if name != "store-insert" else places:
        started = time.perf_counter()
        question(place)
        samples.append((time.perf_counter() - started) * 1000)
    counted = tuple(samples[2:])
    most, which = goal
    cut = median(counted) if which == 0.5 or len(counted) < 20 else quantiles(counted, n=20)[-1]
    return Entry(
        name=name,
        value=cut,
        unit="milliseconds" if which == 0.5 else "milliseconds, 95th percentile",
        goal=most,
        goal_is="at most",
        samples={"milliseconds": counted},
        machine=machine,
    )


def fill(folder: Path, rows: int, whole: bool = False) -> None:
    """Store so many runs of 100 scenarios, 10 stacks, 4 batch sizes and 50 rounds.

    With `whole`, documents and samples of runs differ too, as commands need that compute with them.
    """
    with open_store(folder, write=True) as store:
        sessions = -(-rows // (STACKS * ROUNDS))
        for number in range(sessions):
            store.add_session(make_session(f"session-{number:05}"))
        results = [make_run(size) for size in range(4)]
        templates = [run_record(result) for result in results]
        made = (
            run_record(varied_result(results[number // (STACKS * ROUNDS) % 4], number))
            if whole
            else varied(templates[number // 10 % 4], number)
            for number in range(rows)
        )
        while part := list(islice(made, AT_ONCE)):
            with store.changing() as connection:
                connection.execute(insert(RUNS), [one.columns for one in part])
                for table, place in ((DOCUMENTS, 1), (SAMPLES, 2)):
                    contents = [
                        {"run_id": one.columns["run_id"], "content": one[place]} for one in part
                    ]
                    connection.execute(insert(table), contents)


def varied(record: RunRecord, number: int) -> RunRecord:
    """Return the record of another run: its own ids, scenario, stack and speed."""
    session = number // (STACKS * ROUNDS)
    columns: dict[str, Any] = {
        **record.columns,
        "run_id": f"run-{number:07}",
        "session": f"session-{session:05}",
        "experiment_id": digest([session, number % STACKS]),
        "scenario": f"work-{session % SCENARIOS}",
        "stack": f"stack-{number % STACKS}",
        "round": number // STACKS % ROUNDS,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1.7e9 + 30 * number)),
        "tokens_per_second": 1000.0 + digest_number(number),
    }
    del columns["checksum"]
    return record._replace(columns=with_checksum(columns))


def varied_result(result: Result, number: int) -> Result:
    """Return another run: its own ids, scenario, stack and speed, in all that is stored of it."""
    session, stack = number // (STACKS * ROUNDS), number % STACKS
    name = {"name": f"work-{session % SCENARIOS}"}
    experiment = result.experiment.model_copy(
        update={
            "id": digest([session, stack]),
            "scenario": result.experiment.scenario.model_copy(update=name),
            "stack": result.experiment.stack.model_copy(update={"name": f"stack-{stack}"}),
        }
    )
    seconds = 0.1 + digest_number(number) / 1e5
    update = {
        "run_id": f"run-{number:07}",
        "session": f"session-{session:05}",
        "experiment": experiment,
        "round": number // STACKS % ROUNDS,
        "position": stack,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(1.7e9 + 30 * number)),
        "ranks": tuple(_at_pace(rank, seconds) for rank in result.ranks),
    }
    return result.model_copy(update=update)


def _at_pace(rank: RankResult, seconds: float) -> RankResult:
    """Return a rank whose steps take so many seconds each."""
    assert rank.window is not None
    window = rank.window
    parts = {
        part: tuple(one.model_copy(update={"seconds": seconds}) for one in getattr(window, part))
        for part in ("samples", "warmup")
    }
    update = {**parts, "ended": window.started + seconds * len(window.samples)}
    return rank.model_copy(update={"window": window.model_copy(update=update)})


def digest_number(number: int) -> float:
    """Return a number from 0 to 999 that looks like chance."""
    return float(number * 2654435761 % 2**32 % 1000)


def make_session(name: str) -> SessionRecord:
    """Return a session without a plan."""
    return SessionRecord(id=name, started_at="2026-01-05T08:00:00Z", scenario="work")


def make_run(size: int) -> Result:
    """Return a run of 20 steps with a batch of 2 ** size sequences."""
    batch, name = 2**size, "stack-0"
    train = {"micro_batch_size": batch, "global_batch_size": batch}
    work = {"name": "work", "data": {"sequence_length": 128}, "train": train}
    scenario, stack = Scenario.model_validate(work), Stack(name=name)
    identity = identity_of(scenario, stack, {"torch": "2.13.0"})
    samples = tuple(
        Sample(
            step=step,
            seconds=0.1,
            sequences=batch,
            processed_tokens=128 * batch,
            real_tokens=120 * batch,
            supervised_tokens=119 * batch,
            loss=4.0 - step / 16,
        )
        for step in range(STEPS + 5)
    )
    window = Window(started=1.0, ended=1.0 + STEPS * 0.1, samples=samples[5:], warmup=samples[:5])
    return Result(
        run_id="template",
        session="session-00000",
        experiment=Experiment(
            id=digest(identity), scenario=scenario, stack=stack, identity=identity
        ),
        round=0,
        position=0,
        status=Status.OK,
        started_at="2026-01-05T08:00:01Z",
        seconds=12.5,
        ranks=(RankResult(rank=0, status=Status.OK, device=Device("cpu"), window=window),),
        exits=("exit 0",),
    )
