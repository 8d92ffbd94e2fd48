"""Simulate experiments: `python -m accel_bench_advise.simulation`, a line of JSON in, one out."""

from __future__ import annotations

import logging
import os
import sys

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from accel_bench.errors import AccelBenchError, HookError
from accel_bench.machine.parent import die_with_parent
from accel_bench.worker import settings
from accel_bench_advise.estimates.schema import Simulation, SimulationRequest
from accel_bench_advise.simulation.simulate import SimulatedRun


def main() -> None:
    """Answer each line of standard input; what libraries print goes to standard error."""
    die_with_parent(int(os.environ.get("ACCEL_BENCH_PARENT", "0")))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    settings.set_environment({})
    answer = Answers()
    for line in sys.stdin:
        print(answer(line).model_dump_json(), file=answers, flush=True)


class Answers:
    """Answers requests, and keeps the last model for the next shapes of it."""

    def __init__(self) -> None:
        self._last: tuple[str, SimulatedRun] | None = None

    def __call__(self, line: str) -> Simulation:
        """Return the simulation of a request, or why there is none."""
        try:
            request = SimulationRequest.model_validate_json(line)
            return self._run(request).simulate(request.shape)
        except Exception as error:
            self._last = None  # it ended within a step
            return Simulation(problem=_problem_of(error))

    def _run(self, request: SimulationRequest) -> SimulatedRun:
        key = request.model_dump_json(exclude={"shape"})
        if self._last is None or self._last[0] != key:
            self._last = None  # the one before is not needed beside it
            self._last = key, SimulatedRun(request)
        return self._last[1]


def _problem_of(error: Exception) -> str:
    """Return in a sentence why a step could not be simulated."""
    cause = error.__cause__ if isinstance(error, HookError) else error
    if isinstance(cause, (DataDependentOutputException, DynamicOutputShapeException)):
        who = "the step"
        if isinstance(error, HookError):
            who = f"plugin {error.plugin!r} ({error.distribution}), in {error.hook},"
        return (
            f"{who} reads values of tensors ({cause}), which a simulation does not have; measure "
            "it with `accel-bench run`"
        )
    if isinstance(error, AccelBenchError):
        return str(error)
    logging.getLogger("accel_bench.estimate").error("not simulated", exc_info=error)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    main()
