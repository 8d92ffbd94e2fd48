"""Estimate one scenario on devices of the table, with what makes it fit where it does not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple

from accel_bench.catalog.hardware import NamedHardware
from accel_bench.catalog.prices import PriceEntry
from accel_bench.documents.base import JsonValue
from accel_bench.errors import AccelBenchError
from accel_bench.machine.info import Machine
from accel_bench.planning.plan import Plan, Planned, PlanRequest, make_plan
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench_advise.estimates.schema import Estimate, LengthSummary
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.stacks import Estimator
from accel_bench_advise.estimates.target import machine_with, target_of

PLANNING = Lock()
"""Held while a scenario is planned: several devices or models may be estimated at once."""

MOST_DEVICES = 1024
"""Devices that a machine of the table is taken to have: as many as a scenario wants."""


class DeviceEstimate(NamedTuple):
    """An estimate of a scenario's baseline on a device."""

    estimate: Estimate
    plan: Plan

    settings: dict[str, JsonValue]
    """Changes with which it fits; empty where it fits as it is."""


class DeviceEstimator(NamedTuple):
    """Estimates the baseline of a scenario; the simulations are shared by all devices."""

    simulator: Simulator
    draft: Draft
    request: PlanRequest
    machine: Machine
    stored: Sequence[Result]
    prices: Sequence[PriceEntry]
    training: float | LengthSummary | None

    def estimate(self, chosen: NamedHardware | None) -> DeviceEstimate:
        """Return the estimate for a device of the table, or for this machine's.

        Where it does not fit, it is that of the nearest change that does. Raises AccelBenchError
        for a scenario that cannot be planned for the device.
        """
        plan = self.plan(chosen, {})
        found = self._estimate(chosen, plan)
        nearest = found.nearest
        if nearest is None or not nearest.settings:
            return DeviceEstimate(found, plan, {})
        plan = self.plan(chosen, nearest.settings)
        return DeviceEstimate(self._estimate(chosen, plan), plan, nearest.settings)

    def plan(self, chosen: NamedHardware | None, changed: dict[str, Any]) -> Plan:
        """Return the plan for a machine with such devices, with settings changed."""
        request = replace(
            self.request,
            overrides=(*self.request.overrides, *changed.items()),
            force=True,
            oversubscribe=True,
            build_environments=False,
        )
        # What a plugin prints is no part of the document; standard output is that of all threads.
        with PLANNING, redirect_stdout(sys.stderr):
            return make_plan(self.draft, self.on(chosen), request)

    def on(self, chosen: NamedHardware | None) -> Machine:
        """Return this machine, as if it had the device."""
        return machine_with(self.machine, chosen, MOST_DEVICES) if chosen else self.machine

    def _estimate(self, chosen: NamedHardware | None, plan: Plan) -> Estimate:
        (planned, *_) = [
            one for one in plan.planned if one.experiment.stack.name == plan.baseline
        ] or plan.planned

        estimator = self.estimator(chosen, limits=False)
        return estimator.estimate(planned)

    def estimator(self, chosen: NamedHardware | None, limits: bool) -> Estimator:
        """Return what estimates experiments for a device of the table, or for this machine's."""

        def replan(planned: Planned, changed: dict[str, Any]) -> Planned:
            experiment = planned.experiment
            kept = {key: value for key, value in experiment.sweep.items() if key not in changed}
            for other in self.plan(chosen, changed).planned:
                same = other.experiment.stack.name == experiment.stack.name
                if same and other.experiment.sweep == kept:
                    return other
            raise AccelBenchError("no such experiment with these settings")

        return Estimator(
            self.simulator,
            target_of(self.machine, chosen),
            self.stored,
            self.prices,
            self.training,
            replan,
            limits=limits,
        )
