"""Log to Weights & Biases: nothing of the machine is sampled, and nothing is reported home."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from accel_bench import RunDescription, Summary
from accel_bench_trackers.naming import (
    run_name,
    step_figures,
    verdict_figures,
    verdict_texts,
)

# Read when it is imported; it would start threads that send reports.
os.environ["WANDB_ERROR_REPORTING"] = "false"

import wandb


class Target(NamedTuple):
    """Place at which runs are logged."""

    mode: Literal["offline", "online"]
    project: str | None
    entity: str | None
    folder: Path


def log_run(target: Target, run: RunDescription) -> None:
    """Log a run: settings as its configuration, steps as history, figures as its summary."""
    config = {**run.settings, "effective": run.effective, "run": run.identity}
    with _run(
        target, run.identity["scenario"], run.identity["session"], run_name(run), config
    ) as to:
        for step in run.steps:
            to.log(step_figures(step), step=step.step)
        to.summary.update({**run.figures, "status": run.identity["status"]})


def log_verdict(target: Target, session: str, summary: Summary) -> None:
    """Log the comparison of a session as a run of its group."""
    texts = verdict_texts(summary)
    with _run(target, summary.scenario, session, f"verdict-{session}", {}) as to:
        to.summary.update({**texts, **dict(verdict_figures(summary))})


@contextmanager
def _run(
    target: Target, scenario: str, session: str, name: str, config: dict[str, Any]
) -> Iterator[Any]:
    """Open a run and end it with the block, and wandb's own process where none was up before."""
    before = _is_up()
    target.folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(
        silent=True,
        console="off",
        disable_code=True,
        disable_git=True,
        x_disable_meta=True,
        x_disable_stats=True,
    )
    run = wandb.init(
        mode=target.mode,
        project=target.project or scenario,
        entity=target.entity,
        group=session,
        name=name,
        dir=str(target.folder),
        config=config,
        settings=settings,
        reinit="create_new",
    )
    try:
        yield run
    finally:
        run.finish()
        if not before:
            wandb.teardown()


def _is_up() -> bool:
    """Return whether wandb serves this process already: it is the caller's, and stays up.

    Where a version does not tell, it stays up too, and ends with the process.
    """
    try:
        setup = sys.modules["wandb.sdk.wandb_setup"]._singleton
        return setup is not None and setup._connection is not None
    except (AttributeError, KeyError):
        return True
