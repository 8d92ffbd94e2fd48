"""Runs of one plugin and of its baseline, each made when it is first asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_bench.planning.plan import Planned
from accel_bench.plugin import Plugin
from accel_bench.result import RankResult, Result
from accel_bench.testing.in_process import Execution, fail_in_process
from accel_bench.testing.running import run_or_skip
from accel_bench.testing.tiny import (
    Trial,
    merged,
    plan_trial,
    shrunk,
    slots_of,
)
from accel_bench.testing.traces import preserved

ANYWHERE = ("LlamaForCausalLM", "GPT2LMHeadModel")
"""Architectures that a plugin is tried on which declares none."""

ORDINARY = ("float32", "bfloat16")
"""Dtypes that a plugin is tried in which declares none."""


@dataclass
class TrialRuns:
    """What is tried: a plugin, its options, and the settings in which it must run."""

    name: str
    """Name of the plugin."""

    kind: type[Plugin[Any]]
    """Its class."""

    options: Mapping[str, Any]
    """Its options."""

    scenario: Mapping[str, Any]
    """Keys of a scenario, merged over the tiny one."""

    archs: Sequence[str] | None
    """Architectors asked for; None for those that the class declares."""

    dtypes: Sequence[str] | None
    """Dtypes asked for; None for those that the class declares."""

    device: str
    """`cpu` or `cuda`."""

    other_work: bool
    """Whether the author says that the plugin trains something else."""

    root: Path
    """Folder of all runs, and of their cache."""

    _baselines: dict[str, Result] = field(default_factory=dict)

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots that the plugin fills; none where it stands in the stack."""
        return slots_of(self.kind)

    def plan(self, dtype: str | None = None, model: str | None = None) -> Trial:
        """The plugin and its baseline, with another dtype or another model where one is given."""
        changes: dict[str, Any] = {}
        if dtype is not None:
            changes = {"model": {"dtype": dtype}}
        if model is not None:
            changes = {"model": {"id": model, "overrides": shrunk(model)}}
        scenario = merged(self.scenario, changes)
        # Planning makes the plugin: what it does then must still be new to the run.
        with preserved():
            return plan_trial(self.name, self.options, scenario, self.device)

    def baseline(self, trial: Trial) -> Result:
        """The run without the plugin, made once for each setting."""
        key = trial.baseline.experiment.id
        if key not in self._baselines:
            self._baselines[key] = self._carried(trial.baseline).result
        return self._baselines[key]

    def run(self, trial: Trial) -> Execution:
        """A run with the plugin, made again each time."""
        return self._carried(trial.plugin)

    def fail(self, trial: Trial) -> Execution:
        """A run with the plugin that something else ends after `prepare_process`."""
        return fail_in_process(trial.plugin, self.root)

    def other_dtypes(self, usual: str) -> list[str]:
        """Dtypes to try beside the usual one."""
        wanted = self.dtypes if self.dtypes is not None else sorted(self.kind.dtypes or ORDINARY)
        return [dtype for dtype in wanted if dtype != usual]

    def architectures(self) -> list[str]:
        """Architectures to try."""
        if self.archs is not None:
            return list(self.archs)
        return sorted(self.kind.restricted_model_archs or ANYWHERE)

    def _carried(self, planned: Planned) -> Execution:
        return run_or_skip(planned, self.root)


def own_reasons(result: Result) -> list[str]:
    """Why a run is not `ok`, but for what a busy machine did to its step times."""
    if not result.status.completed:
        return list(result.reasons)
    instabilities = [text for rank in result.ranks for text in _instabilities(rank)]
    metrics = [metric for rank in result.ranks for metric in rank.metrics]
    reasons = [reason for rank in result.ranks for reason in rank.reasons]
    reasons += [metric.reason for metric in metrics if metric.degrades and metric.reason]
    return [reason for reason in reasons if not any(text in reason for text in instabilities)]


def losses(result: Result) -> list[float | None]:
    """Losses from the first step on."""
    windows = [rank.window for rank in result.ranks if rank.window]
    return [
        sample.loss
        for window in windows
        for sample in (*window.warmup, *window.discarded, *window.samples)
    ]


def _instabilities(rank: RankResult) -> tuple[str, ...]:
    return rank.window.instabilities if rank.window else ()
