"""FLOPs of training a model of the catalog, counted in a process of its own."""

from __future__ import annotations

import subprocess

from accel_bench.catalog.models import ModelCard
from accel_bench.documents.base import Frozen
from accel_bench.documents.program import python_command
from accel_bench.errors import AccelBenchError
from accel_bench.flops.workload import Workload

COUNT_SECONDS = 300
"""A model that is not counted after this long is given up; a busy machine may need a minute."""


class ModelCount(Frozen):
    """Result of the worker's FLOP counter for a card's model when all of it trains."""

    workload: Workload | None = None
    """Its matmuls and attention; null where they are not known."""

    positions: int | None = None
    """Longest sequence that learned positions allow; null where they are rotary."""

    problem: str = ""
    """Why there is no workload."""


def count_model(card: ModelCard) -> ModelCount:
    """Count a card's model in a process of its own, since building it needs torch.

    Takes seconds. Raises AccelBenchError when that process fails.
    """
    try:
        done = subprocess.run(
            python_command("-m", "accel_bench_catalog.count_impl"),
            input=card.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=COUNT_SECONDS,
            check=True,
        )
        return ModelCount.model_validate_json(done.stdout)
    except subprocess.TimeoutExpired as error:
        reason = f"it has not ended after {COUNT_SECONDS} s"
        raise AccelBenchError(f"the model cannot be counted: {reason}") from error
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        raise AccelBenchError(f"the model cannot be counted: {last}") from error
