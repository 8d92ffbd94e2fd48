"""Run objects that hooks get in a script: for its whole training, or for one micro-batch."""

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
    experiment: Experiment, world: World, folder: Path, trust_remote_code: bool, place: Any
) -> Run:
    """Return the run object that all hooks of a script share. Its device is the torch.device
    `place`; for None it is a run's usual device."""
    job = Job(
        run_id="apply",
        experiment=experiment,
        folder=str(folder),
        cache_folder=str(cache_folder()),
        trust_remote_code=trust_remote_code,
    )
    run = make_run(job, world.rank, world.local_rank)
    if place is not None:
        run.device = Device(place.type, place.index or 0)
    return run


def one_micro_batch(run: Run, dataset: Any, samples: int) -> Run:
    """Return a copy of a run with one process on the CPU, whose first micro-batch is all of
    `dataset`, in its order. `samples` is the number of its samples."""
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
        dataset=_taken_in_order(dataset, run.scenario.data.seed),
        evidence_callbacks=[],
    )


def _taken_in_order(dataset: Any, seed: int) -> Any:
    """Return the dataset with its samples rearranged, so that the first epoch of a run with this
    seed takes them in the given order."""
    from accel_bench.modeling.data.batch_plan import sample_order

    places = sample_order(len(dataset), seed, epoch=0).argsort()
    return replace(dataset, starts=dataset.starts[places], lengths=dataset.lengths[places])


def with_checkpointing(run: Run, checkpointing: bool) -> Run:
    """Return a copy of a run whose scenario has activation checkpointing on or off."""
    return _with(run, {"train": {"gradient_checkpointing": checkpointing}})


def _with(run: Run, sections: dict[str, dict[str, Any]]) -> Run:
    """Return a copy of a run with changed scenario settings. `sections` maps names of scenario
    sections to their changed values."""
    scenario = run.scenario
    update = {
        section: getattr(scenario, section).model_copy(update=values)
        for section, values in sections.items()
    }
    changed = {"scenario": scenario.model_copy(update=update)}
    return replace(run, experiment=run.experiment.model_copy(update=changed))
