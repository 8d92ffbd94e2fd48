"""accel-bench: measure which acceleration pays, on which hardware, at what cost, at an equal loss.

`run` measures a scenario and `open_store` reads stored results; plugin authors import the other
names. Names are resolved on first use, so that importing the package costs nothing. `check_fit` and
`load_base_model` import torch: import them in the body of a hook.
"""

from __future__ import annotations

import contextlib
import os
import sys


def _drop_working_folder() -> None:
    """Remove the working folder that `python -m accel_bench` puts first on the import path.

    A `random.py` or `yaml.py` in that folder would hide the real module. An entry of PYTHONPATH for
    the same folder stays. This applies to `accel_bench` and to modules that plugins run,
    `accel_bench_*`; the import path of any other program stays unchanged.
    """
    safe = getattr(sys.flags, "safe_path", sys.flags.isolated)
    written = dict(zip(sys.orig_argv, sys.orig_argv[1:], strict=False)).get("-m", "")
    if sys.argv[:1] != ["-m"] or safe or not written.startswith("accel_bench"):
        return
    with contextlib.suppress(OSError):  # a folder that is gone
        if sys.path[:1] == [os.getcwd()]:
            del sys.path[0]


_drop_working_folder()

from importlib import import_module  # noqa: E402
from itertools import chain  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from accel_bench.documents.program import __version__ as __version__  # noqa: E402

if TYPE_CHECKING:
    from accel_bench_apply import accelerate as accelerate

    from accel_bench.analysis.compare import ExperimentComparison as ExperimentComparison
    from accel_bench.analysis.conclusion import conclusion as conclusion
    from accel_bench.analysis.schema import ExperimentSummary as ExperimentSummary
    from accel_bench.analysis.schema import Summary as Summary
    from accel_bench.api.description import RunDescription as RunDescription
    from accel_bench.api.description import Step as Step
    from accel_bench.api.description import describe_run as describe_run
    from accel_bench.api.events import read_events as read_events
    from accel_bench.api.progress import RunProgress as RunProgress
    from accel_bench.api.results import Results as Results
    from accel_bench.api.run import run as run
    from accel_bench.api.run import run_purpose as run_purpose
    from accel_bench.api.stored import StoredResults as StoredResults
    from accel_bench.api.stored import open_store as open_store
    from accel_bench.catalog.models import architecture_of as architecture_of
    from accel_bench.catalog.models import model_config as model_config
    from accel_bench.catalog.models import model_directory as model_directory
    from accel_bench.catalog.models import model_problems as model_problems
    from accel_bench.catalog.models import read_config as read_config
    from accel_bench.catalog.models import unquantizable as unquantizable
    from accel_bench.documents.program import python_command as python_command
    from accel_bench.documents.redaction import Redactor as Redactor
    from accel_bench.engine import Batch as Batch
    from accel_bench.engine import Engine as Engine
    from accel_bench.engine import Loss as Loss
    from accel_bench.engine import Stopwatch as Stopwatch
    from accel_bench.engine import TokenCounts as TokenCounts
    from accel_bench.flops.workload import Attention as Attention
    from accel_bench.flops.workload import Matmul as Matmul
    from accel_bench.flops.workload import Workload as Workload
    from accel_bench.interchange import Format as Format
    from accel_bench.interchange import ImportedRow as ImportedRow
    from accel_bench.interchange import SourceFile as SourceFile
    from accel_bench.job import Job as Job
    from accel_bench.launcher import Allocation as Allocation
    from accel_bench.launcher import Observer as Observer
    from accel_bench.launcher import RankProcess as RankProcess
    from accel_bench.local_process import LocalProcess as LocalProcess
    from accel_bench.local_process import NodePlace as NodePlace
    from accel_bench.local_process import rank_environment as rank_environment
    from accel_bench.machine import nvml as nvml
    from accel_bench.machine.caches import cache_folder as cache_folder
    from accel_bench.machine.device_type import DeviceType as DeviceType
    from accel_bench.machine.info import Device as Device
    from accel_bench.machine.info import Machine as Machine
    from accel_bench.machine.info import available_cores as available_cores
    from accel_bench.machine.info import read_machine as read_machine
    from accel_bench.machine.placement import Placement as Placement
    from accel_bench.machine.placement import read_placement as read_placement
    from accel_bench.machine.process_memory import Stage as Stage
    from accel_bench.modeling.compilation import read_compilation as read_compilation
    from accel_bench.modeling.compilation import reset_compiler as reset_compiler
    from accel_bench.modeling.loading import check_fit as check_fit
    from accel_bench.modeling.loading import load_base_model as load_base_model
    from accel_bench.modeling.quantization import describe_quantized as describe_quantized
    from accel_bench.modeling.quantization import quantize_seconds as quantize_seconds
    from accel_bench.plugin import Options as Options
    from accel_bench.plugin import Plugin as Plugin
    from accel_bench.plugin import hookimpl as hookimpl
    from accel_bench.result import Metric as Metric
    from accel_bench.result import Node as Node
    from accel_bench.result import RankResult as RankResult
    from accel_bench.result import Result as Result
    from accel_bench.result import Sample as Sample
    from accel_bench.result import Status as Status
    from accel_bench.result import TimeSeries as TimeSeries
    from accel_bench.result import Window as Window
    from accel_bench.run_context import Run as Run
    from accel_bench.run_context import StepObserver as StepObserver
    from accel_bench.scenario.experiment import Experiment as Experiment
    from accel_bench.scenario.models import Scenario as Scenario
    from accel_bench.scenario.settings import device_words as device_words
    from accel_bench.scenario.uses import ModelUse as ModelUse
    from accel_bench.task import Held as Held
    from accel_bench.task import Task as Task
    from accel_bench.task import held_tokens as held_tokens


_HOMES = {
    "accel_bench.analysis.compare": ("ExperimentComparison",),
    "accel_bench.analysis.conclusion": ("conclusion",),
    "accel_bench.analysis.schema": ("ExperimentSummary", "Summary"),
    "accel_bench.api.description": ("RunDescription", "Step", "describe_run"),
    "accel_bench.api.events": ("read_events",),
    "accel_bench.api.progress": ("RunProgress",),
    "accel_bench.api.results": ("Results",),
    "accel_bench.api.run": ("run", "run_purpose"),
    "accel_bench.api.stored": ("StoredResults", "open_store"),
    "accel_bench.catalog.models": (
        "architecture_of",
        "model_config",
        "model_directory",
        "model_problems",
        "read_config",
        "unquantizable",
    ),
    "accel_bench.documents.program": ("python_command",),
    "accel_bench.documents.redaction": ("Redactor",),
    "accel_bench.engine": ("Batch", "Engine", "Loss", "Stopwatch", "TokenCounts"),
    "accel_bench.flops.workload": ("Attention", "Matmul", "Workload"),
    "accel_bench.interchange": ("Format", "ImportedRow", "SourceFile"),
    "accel_bench.job": ("Job",),
    "accel_bench.launcher": ("Allocation", "Observer", "RankProcess"),
    "accel_bench.local_process": ("LocalProcess", "NodePlace", "rank_environment"),
    "accel_bench.machine.caches": ("cache_folder",),
    "accel_bench.machine.device_type": ("DeviceType",),
    "accel_bench.machine.info": (
        "Device",
        "Machine",
        "available_cores",
        "read_machine",
    ),
    "accel_bench.machine.placement": ("Placement", "read_placement"),
    "accel_bench.machine.process_memory": ("Stage",),
    "accel_bench.modeling.compilation": ("reset_compiler", "read_compilation"),
    "accel_bench.modeling.loading": ("check_fit", "load_base_model"),
    "accel_bench.modeling.quantization": ("describe_quantized", "quantize_seconds"),
    "accel_bench.plugin": ("Options", "Plugin", "hookimpl"),
    "accel_bench.result": (
        "Metric",
        "Node",
        "RankResult",
        "Result",
        "Sample",
        "Status",
        "TimeSeries",
        "Window",
    ),
    "accel_bench.run_context": ("Run", "StepObserver"),
    "accel_bench.scenario.experiment": ("Experiment",),
    "accel_bench.scenario.models": ("Scenario",),
    "accel_bench.scenario.settings": ("device_words",),
    "accel_bench.scenario.uses": ("ModelUse",),
    "accel_bench.task": ("Held", "Task", "held_tokens"),
}

_BROUGHT = ("accelerate",)
"""Names of public functions that another package provides by an entry point of the group
`accel_bench.functions`."""

__all__ = list(sorted(["nvml", *_BROUGHT, *chain.from_iterable(_HOMES.values())]))
"""Names of all public objects."""


def __getattr__(name: str) -> Any:
    """Return the public object `name`, importing its module; raise AttributeError for others."""
    if name == "nvml":
        return import_module("accel_bench.machine.nvml")
    if name in _BROUGHT:
        doors = import_module("accel_bench.plugins.doors")
        return doors.find_entry("accel_bench.functions", "function", name).load()
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    hint = import_module("accel_bench.errors").did_you_mean(name, __all__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
