"""FLOPs of training a model of the catalog, counted in a separate process that imports torch."""

from __future__ import annotations

import subprocess

from accel_bench.catalog.models import ModelCard
from accel_bench.documents.base import Frozen
from accel_bench.documents.program import python_command
from accel_bench.errors import AccelBenchError
from accel_bench.flops.workload import Workload

COUNT_SECONDS = 300
"""Timeout in seconds of counting a model; a busy machine may need a minute."""


class ModelCount(Frozen):
    """FLOPs of training all weights of a catalog model, counted by building the model's modules."""

    workload: Workload | None = None
    """Matmul and attention FLOPs of the model; null if unknown."""

    positions: int | None = None
    """Largest sequence length of learned position embeddings; null for rotary positions."""

    problem: str = ""
    """Reason why the workload is missing; empty if it was counted."""


def count_model(card: ModelCard) -> ModelCount:
    """Return the training FLOPs of a card's model, counted in a separate process.

    This takes seconds, since the process imports torch. Raises AccelBenchError if the process
    fails.
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
