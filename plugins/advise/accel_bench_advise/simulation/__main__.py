"""`python -m accel_bench_advise.simulation`: simulate experiments, a line of JSON each."""

from __future__ import annotations

import logging
import os
import sys
from functools import lru_cache

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from accel_bench.errors import AccelBenchError, HookError
from accel_bench.machine.parent import die_with_parent
from accel_bench.worker import settings
from accel_bench_advise.estimates.schema import BatchShape, Simulation, SimulationRequest
from accel_bench_advise.simulation.simulate import SimulatedRun


def main() -> None:
    """Print a response to each request line of standard input; other output goes to stderr."""
    die_with_parent(int(os.environ.get("ACCEL_BENCH_PARENT", "0")))
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    settings.set_environment({})
    for line in sys.stdin:
        print(answer(line).model_dump_json(), file=responses, flush=True)


def answer(line: str) -> Simulation:
    """Return the simulation that a line of JSON requests; if it fails, `problem` says why."""
    try:
        request = SimulationRequest.model_validate_json(line)
        any_shape = BatchShape(micro_batch_size=1, sequence_length=1)
        run = _run(request.model_copy(update={"shape": any_shape}).model_dump_json())
        return run.simulate(request.shape)
    except Exception as error:
        _run.cache_clear()  # it ended within a step
        return Simulation(problem=_problem_of(error))


@lru_cache(maxsize=1)
def _run(request: str) -> SimulatedRun:
    """Return the run that simulates `request` (JSON); it is kept for further batch shapes."""
    return SimulatedRun(SimulationRequest.model_validate_json(request))


def _problem_of(error: Exception) -> str:
    """Return the reason why a step could not be simulated, from its error, as text."""
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
