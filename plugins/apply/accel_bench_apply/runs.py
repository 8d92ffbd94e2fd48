"""Runs that stand for a script: its whole training, and one micro-batch of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_bench.job import Job
from accel_bench.machine.caches import cache_folder
from accel_bench.machine.info import Device
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.worker.measurement import make_run
from accel_bench_apply.request import World


def run_of_script(
    experiment: Experiment, world: World, folder: Path, trust_remote_code: bool, given: Any
) -> Run:
    """Return the object that hooks share, on the device of the model that is given."""
    job = Job(
        run_id="apply",
        experiment=experiment,
        folder=str(folder),
        cache_folder=str(cache_folder()),
        trust_remote_code=trust_remote_code,
    )
    run = make_run(job, world.rank, world.local_rank)
    if given is not None:
        place = next(given.parameters()).device
        run.device = Device(place.type, place.index or 0)
    return run


def one_micro_batch(run: Run, dataset: Any, samples: int) -> Run:
    """Return a run of this process alone whose first micro-batch, on the host, is a whole dataset
    of so many samples."""
    sections: dict[str, dict[str, Any]] = {
        "train": dict(micro_batch_size=samples, gradient_accumulation=1, global_batch_size=samples),
        "data": {"held_out": 0},
        "resources": {"devices": 1, "nodes": 1, "data_parallel": 1, "device": "cpu"},
    }
    return replace(
        _with(run, sections),
        device=Device("cpu", 0),  # Memory is pinned by the data loader, if at all.
        rank=0,
        world_size=1,
        dataset=dataset,
        evidence_callbacks=[],
    )


def with_checkpointing(run: Run, checkpointing: bool) -> Run:
    """Return a run whose scenario says so of activation checkpointing."""
    return _with(run, {"train": {"gradient_checkpointing": checkpointing}})


def _with(run: Run, sections: dict[str, dict[str, Any]]) -> Run:
    """Return a run with other values of its scenario's settings, by section."""
    scenario = run.scenario
    update = {
        section: getattr(scenario, section).model_copy(update=values)
        for section, values in sections.items()
    }
    changed = {"scenario": scenario.model_copy(update=update)}
    return replace(run, experiment=run.experiment.model_copy(update=changed))
