"""Stored runs of stacks on an L4, made up for tests of recommendations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis_factory import make_experiment, make_rank, make_result, scaled

from accel_bench.machine.process_memory import Stage
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.uses import Use

GPU = {"type": "cuda", "name": "NVIDIA L4", "uuid": "GPU-1"}
LOSSES = [3.0 - 0.05 * step for step in range(13)]
NOISE = (1.0, 1.001, 0.999, 1.0005, 0.9995)
BASELINE = {"monday": "baseline", "tuesday": "baseline"}


def experiment(name: str, micro: int | None = None, batch: int = 8, **train: Any) -> Experiment:
    """A stack; with a micro-batch one of a sweep that keeps the global batch."""
    sweep: Mapping[str, Any] = {"train.micro_batch_size": micro} if micro else {}
    train = {"micro_batch_size": micro or 1, "global_batch_size": batch, **train}
    uses = () if name == "baseline" else (Use(use=name),)
    return make_experiment(name, uses, sweep=sweep, scenario={"train": train})


def runs(
    stack: Experiment,
    factor: float = 1.0,
    start: float = 10.0,
    losses: Sequence[float] = LOSSES,
    device: Mapping[str, Any] = GPU,
    **changes: Any,
) -> list[Result]:
    """Five rounds on an L4, or another device, that are so many times as fast as the baseline."""
    found = []
    turned = NOISE[len(stack.stack.name) % 5 :] + NOISE[: len(stack.stack.name) % 5]
    for number, seconds in enumerate(scaled(1 / factor, turned)):
        rank = make_rank(
            step_seconds=(seconds,) * 12, losses=losses, device=device, tokens=800
        ).model_copy(update={"stages": (Stage(name="warm-up", seconds=start + seconds),)})
        window = rank.window
        assert window is not None
        both = {
            part: tuple(one.model_copy(update={"sequences": 8}) for one in getattr(window, part))
            for part in ("warmup", "samples")
        }
        rank = rank.model_copy(update={"window": window.model_copy(update=both)})
        found.append(make_result(stack, round=number, ranks=[rank], **changes))
    return found


def in_turn(*stacks: Sequence[Result]) -> list[Result]:
    """The runs of all stacks, one after the other in each round."""
    return [
        run.model_copy(update={"started_at": f"{run.started_at[:14]}{run.round:02}:{place:02}Z"})
        for place, one in enumerate(stacks)
        for run in one
    ]
