"""Job: the content of `job.json`, which the parent process passes to the workers it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from accel_bench.documents.base import Frozen, PositiveInt
from accel_bench.documents.program import python_command
from accel_bench.scenario.experiment import SCHEMA_VERSION, Experiment
from accel_bench.scenario.uses import Use

WRITES_RESULT = "write_result"
"""Name of the phase in which a worker's core writes the result."""

PURPOSES = "accel_bench.purposes"
"""Entry-point group of further purposes of a worker: programs that use a built run."""

OWN_PURPOSES = PREPARE, MEASURE = "prepare", "measure"
"""Purposes of a worker that the core implements: filling caches, untimed, and measuring a run."""

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
"""Phases of a worker, in order; a heartbeat page holds an index into them."""

STEP_PHASES = ("warm-up", "window", "phases", "check", "communication", "observe_steps")
"""Phases in which the engine takes optimizer steps."""

HEARTBEAT_STEP, HEARTBEAT_PHASE, HEARTBEAT_PLUGIN, HEARTBEAT_PASSES = 0, 1, 2, 3
"""Indices of the numbers in a rank's heartbeat page: optimizer steps ended so far; index of the
phase; number of the active plugin whose code is being called, from 1, or 0 for none; forward passes
outside of steps."""

HEARTBEAT_BYTES = 32
"""Size of the heartbeat page: four unsigned 64-bit numbers in the machine's byte order."""

UPDATE_FILE = "rank0.update"
"""Name of the file with the change of a run's trained weights, kept until it is compared."""

BYTES_OF_A_CHANGE = 4
"""Bytes of one number in the file of the weights' change: float32, little-endian."""

SPARE_DISK_BYTES = 1 << 30
"""Bytes of a disk that must stay free after the file of the weights' change is written."""


class Job(Frozen):
    """Input of all ranks of one attempt."""

    schema_version: int = SCHEMA_VERSION

    purpose: str = MEASURE
    """Work of the ranks: `prepare` fills caches untimed, `measure` measures a run, any other value
    names an entry point of the group `PURPOSES`."""

    one_process: bool = False
    """True if a single process does the work, whatever the number of ranks, and builds no model."""

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
    """Number of the attempt of this run, from 0; a retry adds one."""

    trust_remote_code: bool = False
    """True if a model may bring code of its own."""

    update_bytes: int = Field(0, ge=0)
    """Largest file of the weights' change that rank 0 may leave, in bytes; 0: no file."""

    observers: tuple[Use, ...] = ()
    """Plugins that observe steps after the measured window, outside of the experiment."""

    @property
    def world_size(self) -> int:
        """Number of ranks to start."""
        alone = self.one_process or self.purpose == PREPARE
        return 1 if alone else self.experiment.scenario.world_size

    def python_command(self, *arguments: str) -> list[str]:
        """Return the command that runs the ranks' Python interpreter with the arguments."""
        return [*self.interpreter, *arguments] if self.interpreter else python_command(*arguments)

    def path(self) -> Path:
        """Return the path of `job.json`."""
        return Path(self.folder) / "job.json"

    def result_path(self, rank: int) -> Path:
        """Return the path of the file with a rank's result."""
        return Path(self.folder) / f"rank{rank}.json"

    def answer_path(self, rank: int) -> Path:
        """Return the path of the JSON file with a rank's result of the work named by `purpose`."""
        return Path(self.folder) / f"rank{rank}.answer.json"

    def log_path(self, rank: int) -> Path:
        """Return the path of a rank's log, which holds everything that the rank prints."""
        return Path(self.folder) / f"rank{rank}.log"

    def update_path(self) -> Path:
        """Return the path of the file with the trained weights' change."""
        return Path(self.folder) / UPDATE_FILE

    def heartbeat_path(self, rank: int) -> Path:
        """Return the path of the memory-mapped page in which a rank stores its step and phase."""
        return Path(self.folder) / f"rank{rank}.heartbeat"
