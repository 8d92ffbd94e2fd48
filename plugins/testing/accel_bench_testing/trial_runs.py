"""Runs of one plugin and of its baseline, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from accel_bench.plugin import Plugin
from accel_bench.plugins.describe import slots_of
from accel_bench.plugins.loading import import_plugin
from accel_bench.plugins.registry import find
from accel_bench.result import Result
from accel_bench_testing.in_process import Execution
from accel_bench_testing.process_state import preserved
from accel_bench_testing.running import run_or_skip
from accel_bench_testing.tiny import Trial, merged, plan_trial


@dataclass(eq=False)
class TrialRuns:
    """Plugin with its options and settings, and the runs made with it so far."""

    name: str
    options: Mapping[str, Any]

    scenario: Mapping[str, Any]
    """Keys of a scenario file, merged over the tiny scenario."""

    archs: Sequence[str] | None
    """Architectures given by the author, or None for the architectures that the class declares."""

    dtypes: Sequence[str] | None
    """Dtypes given by the author, or None for the dtypes that the class declares."""

    device: str
    """Device type of the runs, `cpu` or `cuda`."""

    other_work: bool
    """True if the author declares that the plugin trains something else."""

    root: Path = Path()
    """Folder for the files of all runs, and for their cache."""

    _baselines: dict[str, Result] = field(default_factory=dict)

    @cached_property
    def kind(self) -> type[Plugin[Any]]:
        """Class of the plugin, imported at first use. Raises PluginError if it cannot be
        imported."""
        plugin = find(self.name)
        return import_plugin(plugin.entry, f"plugin {self.name!r} ({plugin.distribution})", True)

    @property
    def importable(self) -> bool:
        """True if the plugin's class can be imported."""
        try:
            return self.kind is not None
        except BaseException:  # Whatever it was, it has been reported by who asked first.
            return False

    @property
    def slots(self) -> tuple[str, ...]:
        """Scenario sections that the plugin fills, such as `model`; empty for a stack's plugin."""
        return slots_of(self.kind)

    @cached_property
    def usual(self) -> Trial:
        """Plans of the plugin and its baseline with the usual model and dtype."""
        return self.plan()

    @cached_property
    def execution(self) -> Execution:
        """First execution of the plugin with the usual model and dtype."""
        return self.run(self.usual)

    def plan(self, **work: Mapping[str, Any]) -> Trial:
        """Return plans of the plugin and its baseline, with some keys of the scenario replaced.

        `work` has the keys of a scenario file by section.
        """
        scenario = merged(self.scenario, work)
        # Planning makes the plugin: what it does then must still be new to the run.
        with preserved():
            return plan_trial(self.name, self.options, scenario, self.device)

    def baseline(self, trial: Trial) -> Result:
        """Return the result of a trial's baseline, which is run only once for each setting."""
        key = trial.baseline.experiment.id
        if key not in self._baselines:
            self._baselines[key] = run_or_skip(trial.baseline, self.root).result
        return self._baselines[key]

    def run(self, trial: Trial) -> Execution:
        """Run the plugin of a trial once more, and return the execution."""
        return run_or_skip(trial.plugin, self.root, watched=True)


def own_reasons(result: Result) -> list[str]:
    """Return the reasons why a run's status is not `ok`, except instability that a busy machine
    causes."""
    if not result.status.completed:
        return list(result.reasons)
    windows = [rank.window for rank in result.ranks if rank.window]
    instabilities = [text for window in windows for text in window.instabilities]
    metrics = [metric for rank in result.ranks for metric in rank.metrics]
    reasons = [reason for rank in result.ranks for reason in rank.reasons]
    reasons += [metric.reason for metric in metrics if metric.degrades and metric.reason]
    return [reason for reason in reasons if not any(text in reason for text in instabilities)]


def ending_of(result: Result) -> str:
    """Return the status of a run and its reasons in one string."""
    reasons = own_reasons(result) or list(result.reasons)
    where = f" in {result.phase}" if result.phase else ""
    if any(rank.error and rank.error.type == "KeyboardInterrupt" for rank in result.ranks):
        return f"it raised KeyboardInterrupt{where}"
    return f"{result.status.value}{where}: {'; '.join(reasons) or 'no reason given'}"


def losses(result: Result) -> list[float | None]:
    """Return the loss of each step of a run, warm-up included, or None for a step without loss."""
    windows = [rank.window for rank in result.ranks if rank.window]
    return [sample.loss for window in windows for sample in window.all_steps]
