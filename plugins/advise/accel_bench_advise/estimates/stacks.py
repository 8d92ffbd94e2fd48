"""Estimate the experiments of a plan for a device: does it fit, how fast, for how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accel_bench.analysis.wording import label_of
from accel_bench.catalog.prices import PriceEntry
from accel_bench.errors import AccelBenchError
from accel_bench.planning.plan import Planned
from accel_bench.result import Result
from accel_bench_advise.estimates.answer import (
    answer_of,
    counts_of,
    named_batch,
    notes_of,
    shape_of,
)
from accel_bench_advise.estimates.cost import estimate_cost
from accel_bench_advise.estimates.largest import MemoryEstimator
from accel_bench_advise.estimates.nearest import NearestSearch, Replan
from accel_bench_advise.estimates.schema import Estimate, LengthSummary
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.step import SpeedEstimator
from accel_bench_advise.estimates.target import Target

NO_STEP = (
    "a step of training is estimated, and mode inference has none: estimate a scenario of the same "
    "model that trains"
)
"""Why nothing is estimated where requests are answered."""


@dataclass(frozen=True)
class Estimator:
    """Estimates experiments for one device."""

    simulator: Simulator
    target: Target
    stored: Sequence[Result]
    prices: Sequence[PriceEntry]
    training: float | LengthSummary | None
    """What is trained on: tokens with padding, or samples of a file of lengths."""

    replan: Replan
    limits: bool = True
    """True if the largest batch and the longest context are looked for: some more simulations."""

    def estimate(self, planned: Planned) -> Estimate:
        """Return the estimate of an experiment; one that cannot be simulated says why."""
        experiment = planned.experiment
        scenario = experiment.scenario
        blank = Estimate(
            scenario=scenario.name,
            experiment_id=experiment.id,
            stack=experiment.stack.name,
            sweep=experiment.sweep,
            tag=experiment.tag,
            gpu=self.target.name,
            devices=scenario.world_size,
            shape=shape_of(scenario),
            counts=counts_of(planned),
        )
        if planned.skipped:
            return blank.model_copy(update={"problem": "; ".join(planned.skipped)})
        if scenario.generates:
            return blank.model_copy(update={"problem": NO_STEP})
        try:
            return blank.model_copy(update=self._figures(planned))
        except AccelBenchError as error:
            return blank.model_copy(update={"problem": str(error)})

    def _figures(self, planned: Planned) -> dict[str, Any]:
        """Return the fields of an estimate that has no problem."""
        shape = shape_of(planned.experiment.scenario)
        estimator = MemoryEstimator(self.simulator, self.target)
        memory = estimator.memory(planned, shape)
        model = self.simulator.model(planned.experiment)
        lacks = memory.fit == "does not fit"
        nearest = NearestSearch(estimator, self.replan).nearest(planned) if lacks else None
        name = label_of(planned.experiment)
        figures = {
            "parameters": model.parameters,
            "trained_parameters": model.trained_parameters,
            "memory": memory,
            "nearest": nearest,
            "notes": tuple(notes_of(planned, shape, model.longest_published)),
            **self._speed_and_money(planned, estimator),
        }
        if self.limits and memory.device_bytes is not None:
            figures["largest_micro_batch_size"] = estimator.largest_batch(planned)
            figures["longest_sequence_length"] = estimator.longest(planned)
        answer = answer_of(named_batch(name, planned), self.target.name, memory, nearest)
        return {**figures, "answer": answer}

    def _speed_and_money(self, planned: Planned, estimator: MemoryEstimator) -> dict[str, Any]:
        """Return the speed, and what follows from it for the tokens to train on."""
        scenario = planned.experiment.scenario
        footprint = estimator.footprint(planned, shape_of(scenario))
        speeds = SpeedEstimator(self.simulator, self.target, self.stored)
        speed = speeds.speed(planned.experiment, footprint)
        tokens = self._tokens(planned)
        return {
            "for_tokens": tokens,
            "speed": speed,
            "hours": speed.tokens_per_second.inverted(tokens / 3600) if speed and tokens else None,
            "cost": estimate_cost(scenario, speed, self.target.hardware, self.prices, tokens),
        }

    def _tokens(self, planned: Planned) -> float | None:
        """Return the tokens that are processed: samples that are not packed are padded."""
        if not isinstance(self.training, LengthSummary):
            return self.training
        data = planned.active.answers("load_data")
        if data is not None and getattr(data.instance.options, "packing", False):
            return float(self.training.tokens)
        return float(self.training.samples * planned.experiment.scenario.data.sequence_length)
