"""The job that the parent gives to its workers: the content of `job.json`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from accel_bench.documents.base import Frozen, PositiveInt
from accel_bench.documents.program import python_command
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment
from accel_bench.scenario.uses import Use

WRITES_RESULT = "write_result"
"""The phase in which a worker's core writes the result."""

PURPOSES = "accel_bench.purposes"
"""Group of the entry points of what a worker does beside measuring."""

OWN_PURPOSES = PREPARE, MEASURE = "prepare", "measure"
"""The core's own: filling caches, which is not timed, and a run."""

PHASES = (
    "start",
    "activation",
    "purpose",
    "prepare_experiment",
    "prepare_process",
    "load_data",
    "load_model",
    "add_adapter",
    "accelerate_model",
    "compile_model",
    "parallelize_model",
    "build_loss",
    "build_optimizer",
    "build_batches",
    "build_evaluation_batches",
    "build_engine",
    "evaluate",
    "warm-up",
    "window",
    "finish_metrics",
    "learning",
    "phases",
    "check",
    "communication",
    "observe_steps",
    "near_ties",
    "report_evidence",
    "close_run",
    WRITES_RESULT,
)
"""Phases of a worker, in order; a heartbeat page holds the index."""

STEP_PHASES = ("warm-up", "window", "phases", "check", "communication", "observe_steps")
"""Phases in which the engine takes steps."""

HEARTBEAT_STEP, HEARTBEAT_PHASE, HEARTBEAT_PLUGIN, HEARTBEAT_PASSES = 0, 1, 2, 3
"""Places in a rank's heartbeat page: optimizer steps ended so far, index of the phase, number of
the active plugin whose code is being called, from 1; 0 for none, and forward passes outside of
steps."""

HEARTBEAT_BYTES = 32
"""Size of the page: four unsigned 64-bit numbers in the machine's byte order."""

UPDATE_FILE = "rank0.update"
"""Name of the file in which a run keeps the change of its trained weights until it is compared."""

BYTES_OF_A_CHANGE = 4
"""Bytes of one number in the file of the weights' change: float32, little-endian."""

SPARE_DISK_BYTES = 1 << 30
"""Room that is left on a disk on which such a file is written."""


class Job(Frozen):
    """One process group's work: everything that its ranks need to know."""

    schema_version: int = SCHEMA_VERSION

    purpose: str = MEASURE
    """`prepare` fills caches and is not timed; `measure` is a run; another one is the name of an
    entry point of the group `PURPOSES`."""

    one_process: bool = False
    """True if one process does it, whatever the number of ranks: nothing is built."""

    run_id: str
    """Unique name of this attempt."""

    experiment: Experiment

    folder: str
    """Absolute folder of this attempt; the job, results, logs and heartbeats lie in it."""

    cache_folder: str
    """Absolute folder of content-keyed caches, shared by all runs of this user."""

    interpreter: tuple[str, ...] = ()
    """Command of the Python that runs the ranks; empty for the one that runs the parent."""

    warmup: PositiveInt | None = None
    """Warm-up steps of round 1; null lets this run determine them (`measure.warmup: auto`)."""

    round: int = Field(0, ge=0)
    """Round, from 0."""

    attempt: int = Field(0, ge=0)
    """Retry of the same run, from 0."""

    trust_remote_code: bool = False
    """True if a model may bring code of its own."""

    update_bytes: int = Field(0, ge=0)
    """Largest file of the trained weights' change that rank 0 may leave; 0: none."""

    observers: tuple[Use, ...] = ()
    """Plugins that observe steps after the measured window, and are no part of the experiment."""

    @property
    def world_size(self) -> int:
        """Ranks to start."""
        alone = self.one_process or self.purpose == PREPARE
        return 1 if alone else self.experiment.scenario.world_size

    def python_command(self, *arguments: str) -> list[str]:
        """Return a command of the Python that runs the ranks."""
        return [*self.interpreter, *arguments] if self.interpreter else python_command(*arguments)

    def path(self) -> Path:
        """Return the path of `job.json`."""
        return Path(self.folder) / "job.json"

    def result_path(self, rank: int) -> Path:
        """Return the path of a rank's result."""
        return Path(self.folder) / f"rank{rank}.json"

    def answer_path(self, rank: int) -> Path:
        """Return the path of what a purpose has returned on a rank, as JSON."""
        return Path(self.folder) / f"rank{rank}.answer.json"

    def log_path(self, rank: int) -> Path:
        """Return the path of the log that gets everything a rank prints."""
        return Path(self.folder) / f"rank{rank}.log"

    def update_path(self) -> Path:
        """Return the path of the trained weights' change, which the parent takes away."""
        return Path(self.folder) / UPDATE_FILE

    def heartbeat_path(self, rank: int) -> Path:
        """Return the path of the memory-mapped page in which a rank stores its step number."""
        return Path(self.folder) / f"rank{rank}.heartbeat"
