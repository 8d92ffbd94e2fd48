"""A rank that computes nothing: it tells the stand-in library what it uses, and leaves a result.

Its plan: `uuid` of the device, `before` and `during` (lines for the script: before the window,
and in its middle; PID stands for its own), `gone` (lines to take away at its end), `seconds` of the
window; `exit` is a code to leave with instead of a result.
"""

import os
import time
from pathlib import Path

from accel_bench.job import HEARTBEAT_STEP, WRITES_RESULT
from accel_bench.machine.info import Device
from accel_bench.result import RankResult, Sample, Status, Window
from accel_bench.worker.heartbeat import Heartbeat


def main(result: Path, script: Path, plan: dict) -> int:
    """Live as a rank does."""

    def add(lines: list) -> None:
        aside = script.with_suffix(f".{os.getpid()}")
        text = "".join(f"{line}\n" for line in lines).replace("PID", str(os.getpid()))
        aside.write_text(script.read_text() + text)
        aside.rename(script)

    def leave() -> None:
        """Nobody lists a process that has gone; what else was said stays."""
        lines, own = script.read_text().splitlines(), f"process {os.getpid()} "
        kept = [line for line in lines if own not in line and line not in plan["gone"]]
        aside = script.with_suffix(".last")
        aside.write_text("\n".join([*kept, ""]))
        aside.rename(script)

    while not script.with_name("go").exists():
        time.sleep(0.01)
    add(plan["before"])
    time.sleep(0.5)
    started = time.monotonic()
    time.sleep(plan["seconds"] / 2)
    add(plan["during"])
    time.sleep(plan["seconds"] / 2)
    ended = time.monotonic()
    leave()
    if "exit" in plan:
        return int(plan["exit"])
    sample = Sample(
        step=0,
        seconds=ended - started,
        sequences=1,
        processed_tokens=1,
        real_tokens=1,
        supervised_tokens=1,
        loss=1.0,
    )
    found = RankResult(
        rank=0,
        status=Status.OK,
        device=Device("cuda", name="a GPU", uuid=plan["uuid"]),
        window=Window(started=started, ended=ended, samples=(sample,)),
    )
    heartbeat = Heartbeat(result.with_suffix(".heartbeat"))
    heartbeat.page[HEARTBEAT_STEP] = 1
    heartbeat.phase = WRITES_RESULT
    result.write_text(found.model_dump_json())
    return 0
