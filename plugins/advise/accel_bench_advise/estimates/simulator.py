"""Client of the simulating process, a separate process so that this one need not import torch."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Literal

from pydantic import ValidationError

from accel_bench.analysis.wording import duration
from accel_bench.documents.program import python_command
from accel_bench.errors import AccelBenchError
from accel_bench.scenario.experiment import Experiment
from accel_bench_advise.estimates.schema import (
    BatchShape,
    Footprint,
    Simulation,
    SimulationRequest,
)

TIMEOUT_SECONDS = 1800.0
"""Timeout of a simulation in seconds; a step of 70e9 parameters takes a minute or two."""


class Simulator:
    """Client of a process that simulates a run's step to find its memory and work.

    The process starts on the first request, and all responses are cached.
    """

    def __init__(
        self, trust_remote_code: bool = False, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._trust_remote_code = trust_remote_code
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] = tempfile.TemporaryFile("w+", errors="replace")
        self._known: dict[tuple[str, str, BatchShape], Footprint] = {}
        self._models: dict[str, Simulation] = {}

    def model(self, experiment: Experiment) -> Simulation:
        """Return the simulation of an experiment, which has its model's parameter counts.

        Call `footprint` with this experiment before; otherwise a KeyError is raised.
        """
        return self._models[_key(experiment)]

    def footprint(
        self, experiment: Experiment, device: Literal["cpu", "cuda"], **other: int
    ) -> Footprint:
        """Return the memory and work of one optimizer step of an experiment.

        `other` replaces sizes of the experiment's batch shape by name, such as `micro_batch_size`.
        Raises AccelBenchError if the step cannot be simulated.
        """
        shape = BatchShape.of(experiment.scenario).model_copy(update=other)
        key = _key(experiment), device, shape
        if key not in self._known:
            simulation = self._ask(
                SimulationRequest(
                    experiment=experiment,
                    shape=shape,
                    device=device,
                    trust_remote_code=self._trust_remote_code,
                )
            )
            if simulation.footprint is None:
                raise AccelBenchError(f"the step cannot be simulated: {simulation.problem}")
            self._models[key[0]] = simulation
            self._known[key] = simulation.footprint
        return self._known[key]

    def close(self) -> None:
        """End the simulating process and close its log."""
        self._end()
        self._log.close()

    def _end(self) -> None:
        """End the simulating process; the next request starts another process."""
        if self._process is not None:
            self._process.kill()
            with suppress(OSError):  # a question that it has not read
                self._process.communicate()
        self._process = None

    def _ask(self, request: SimulationRequest) -> Simulation:
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        started = time.monotonic()
        timer = threading.Timer(self._timeout_seconds, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(request.model_dump_json() + "\n")
            process.stdin.flush()
            if not (line := process.stdout.readline()):
                raise BrokenPipeError("no answer")
            return Simulation.model_validate_json(line)
        except (OSError, ValueError) as error:
            self._end()
            if time.monotonic() - started >= self._timeout_seconds:
                limit = duration(self._timeout_seconds)
                raise AccelBenchError(f"the simulation was ended after {limit}") from error
            if isinstance(error, ValidationError):
                shown = line.strip()[:80]
                raise AccelBenchError(f"the simulation has answered {shown!r}") from error
            raise AccelBenchError(f"the simulation has ended: {self._last_line()}") from error
        finally:
            timer.cancel()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            python_command("-m", "accel_bench_advise.simulation"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={
                **os.environ,
                "ACCEL_BENCH_PARENT": str(os.getpid()),
                "CUDA_VISIBLE_DEVICES": "",  # it needs none, and would take memory on each
            },
        )

    def _last_line(self) -> str:
        self._log.seek(0)
        lines: Sequence[str] = self._log.read().strip().splitlines()
        return lines[-1] if lines else "it has said nothing"


def _key(experiment: Experiment) -> str:
    uses = [use.model_dump_json() for use in experiment.stack.uses]
    work = experiment.scenario.model_dump_json(exclude={"name", "description", "measure"})
    return "\n".join([work, *uses])
