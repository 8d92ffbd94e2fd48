"""Sessions and results made up for tests of the store: real models, chosen content."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from accel_bench.documents.canonical import digest
from accel_bench.effective import EffectiveConfiguration
from accel_bench.machine.info import Device, Machine
from accel_bench.result import Metric, PluginVersion, RankResult, Result, Sample, Status, Window
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.uses import Use
from accel_bench.store.database import SessionRecord, open_store

MACHINE = Machine(
    host="bench-1",
    system="Linux 6",
    processor="a CPU",
    cores=4,
    memory_bytes=2**34,
    python="3.12",
    versions={"torch": "2.13.0"},
)


def make_session(session: str = "monday") -> SessionRecord:
    """A session with a plan of two rounds."""
    return SessionRecord(
        id=session,
        started_at="2026-01-05T08:00:00Z",
        scenario="peft",
        command=("accel-bench", "run", "peft.yaml"),
        document={"text": "name: peft\n", "order": [["lora", "nf4"], ["nf4", "lora"]]},
    )


def make_experiment(
    stack: str = "lora", sweep: Mapping[str, Any] | None = None, **work: Any
) -> Experiment:
    """One point of the scenario `peft`; `work` are settings of it."""
    scenario = Scenario.model_validate({"name": "peft", "data": {"sequence_length": 110}, **work})
    uses = Stack(name=stack, uses=(Use(use="lora", options={"r": 8}),))
    identity = identity_of(scenario, uses, {"torch": "2.13.0", "sweep": dict(sweep or {})})
    return Experiment(
        id=digest(identity),
        scenario=scenario,
        stack=uses,
        sweep=dict(sweep or {}),
        identity=identity,
    )


def make_rank(rank: int = 0, seconds: float = 0.5, tokens: int = 100) -> RankResult:
    """A rank that took one step of warm-up and two measured ones."""
    samples = tuple(
        Sample(
            step=step,
            seconds=seconds,
            sequences=1,
            processed_tokens=tokens + 10,
            real_tokens=tokens,
            supervised_tokens=tokens - 1,
            loss=2.0 - step / 4,
        )
        for step in range(3)
    )
    return RankResult(
        rank=rank,
        status=Status.OK,
        device=Device("cpu", name="a CPU"),
        window=Window(started=1.0, ended=1 + 2 * seconds, samples=samples[1:], warmup=samples[:1]),
        metrics=(
            Metric(
                name="peak_memory_bytes",
                figure="peak_memory",
                value=1000,
                unit="bytes",
                scope="rank",
            ),
        ),
        effective=EffectiveConfiguration(threads=4),
        evidence={"lora": {"modules": 4}},
    )


def make_result(run_id: str = "run-1", session: str = "monday", **changes: Any) -> Result:
    """A completed run of one rank; `changes` are fields of the result."""
    fields: dict[str, Any] = {
        "experiment": make_experiment(),
        "round": 0,
        "position": 0,
        "status": Status.OK,
        "started_at": "2026-01-05T08:00:01Z",
        "seconds": 3.0,
        "ranks": (make_rank(),),
        "exits": ("exit 0",),
        "plugins": (PluginVersion(name="lora", distribution="accel-bench", version="0.1.0"),),
        "machine": MACHINE,
        "command": ("accel-bench", "run", "peft.yaml", "--only", "lora"),
        "folder": f"runs/{session}/{run_id}",
    }
    return Result(run_id=run_id, session=session, **{**fields, **changes})


def change_payload(folder: Path, run_id: str, old: str, new: str) -> None:
    """Change the document or the samples of a stored row behind the store's back."""
    with closing(sqlite3.connect(folder / "results.sqlite")) as connection, connection:
        changed = 0
        for table in ("documents", "samples"):
            query = f"SELECT content FROM {table} WHERE run_id = ?"
            before = zlib.decompress(connection.execute(query, (run_id,)).fetchone()[0]).decode()
            content = zlib.compress(before.replace(old, new).encode())
            update = f"UPDATE {table} SET content = ? WHERE run_id = ?"
            changed += old in before and connection.execute(update, (content, run_id)).rowcount
        assert changed == 1


LORA = make_experiment("lora")
LONG = make_experiment("long", {"model.id": "[/red]"}, train={"seed": 7})


def three_runs() -> list[Result]:
    """Two runs of one experiment and a failed one of another."""
    return [
        make_result("run-a", experiment=LORA, ranks=(make_rank(0), make_rank(1, seconds=1.0))),
        make_result("run-b", experiment=LORA, round=1),
        make_result(
            "run-c",
            experiment=LONG,
            round=2,
            ranks=(),
            status=Status.OOM,
            reasons=("asked for 2 GiB, 1 GiB free",),
            log_tail="first line\nlast line \x1b[31m",
            command=("accel-bench", "run", "my file.yaml", "--set", "a=$(b)"),
        ),
    ]


def store_three_runs(folder: Path) -> None:
    """Store them in a results folder."""
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        for result in three_runs():
            store.add(result)
