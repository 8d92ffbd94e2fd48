"""The plugin `torch-compile`: torch.compile on each decoder block, or on the whole model."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from accel_bench import (
    Experiment,
    Machine,
    Metric,
    Options,
    Plugin,
    Run,
    Window,
    available_cores,
    hookimpl,
)
from accel_bench_compile.cache import CompileCache
from accel_bench_compile.environment import Variables

if TYPE_CHECKING:
    from accel_bench_compile.cudagraphs import Capture
    from accel_bench_compile.impl import CompiledModules

FEW_CORES = 4
"""Largest number of cores with which inductor compiles in its process, without a worker pool."""


SET_BY_TORCH = (
    "CUDA_HOME",
    "DISABLE_CUPTI_LAZY_REINIT",
    "KMP_DUPLICATE_LIB_OK",
    "TEARDOWN_CUPTI",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_PTXAS_PATH",
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
)
"""Environment variables that torch sets while compiling and does not unset."""

USUAL_BACKENDS = ("inductor", "thunder", "eager", "aot_eager", "cudagraphs")
"""Common backends, which an error suggests for a misspelled name."""

WITH_CUDAGRAPHS = ("reduce-overhead", "max-autotune")
"""Inductor's modes that record CUDA graphs on a GPU."""


class TorchCompileOptions(Options):
    """Options of `torch-compile`; names of `torch.compile`'s arguments keep their meanings."""

    backend: str = Field("inductor", min_length=1)
    """Compiler of the captured graphs; `eager` and `aot_eager` capture them only, `thunder` is
    Lightning Thunder, if installed."""

    executors: tuple[str, ...] = Field((), strict=False)
    """Thunder's executors by preference, such as `inductor_cat`; empty for its defaults."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """Preset of inductor's settings, by torch's name; null is `default`."""

    inductor_options: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Inductor settings by name, like `options` of `torch.compile`; exclusive with `mode`, which is
    a preset of such settings."""

    dynamic: bool | None = None
    """True to compile for dynamic shapes; null lets the compiler decide at the second shape."""

    fullgraph: bool = False
    """True to raise an error at a graph break."""

    scope: Literal["block", "model"] = "block"
    """Unit of compilation: `block`, each decoder block, with shared code, or the whole `model`."""

    recompile_limit: int | None = Field(None, gt=0)
    """Maximum number of compilations of a function, after which its further calls run uncompiled;
    null is torch's own limit, 8, or in mode inference 8 for each block."""

    cache: Literal["warm", "cold"] = "warm"
    """State of inductor's disk cache. `warm`: kept between runs, and filled before the first round;
    `cold`: an empty one for each run, removed afterwards."""

    @property
    def uses_inductor(self) -> bool:
        """True if inductor compiles code, as it also does for Thunder's unsupported operations."""
        return self.backend in ("inductor", "thunder")

    @property
    def asks_cudagraphs(self) -> bool:
        """True if the options request CUDA graphs on a GPU."""
        return (
            self.backend == "cudagraphs"
            or self.mode in WITH_CUDAGRAPHS
            or self.inductor_options.get("triton.cudagraphs") is True
        )

    @model_validator(mode="after")
    def _each_with_its_backend(self) -> TorchCompileOptions:
        """Raise ValueError for an option that the chosen backend does not support.

        Torch would reject such an option late or never.
        """
        near = get_close_matches(self.backend, USUAL_BACKENDS, n=1, cutoff=0.8)
        if near and self.backend not in USUAL_BACKENDS:
            raise ValueError(f"unknown backend {self.backend!r}; did you mean {near[0]!r}?")
        if self.mode not in (None, "default") and self.backend != "inductor":
            raise ValueError(f"mode {self.mode!r} belongs to inductor, not to {self.backend!r}")
        if self.executors and self.backend != "thunder":
            raise ValueError(f"executors belong to thunder, not to {self.backend!r}")
        if self.inductor_options and self.backend != "inductor":
            raise ValueError(f"inductor_options belong to inductor, not to {self.backend!r}")
        if self.inductor_options and self.mode is not None:
            raise ValueError(
                "mode is a preset of inductor_options: give one of them "
                "(`torch._inductor.list_mode_options()` shows what a mode sets)"
            )
        if self.cache == "cold" and not self.uses_inductor:
            raise ValueError(f"cache: cold is about inductor's cache; {self.backend!r} has none")
        return self


class TorchCompile(Plugin[TorchCompileOptions]):
    """Compile the model by torch.compile, in place, after other accelerations."""

    Options = TorchCompileOptions
    devices = frozenset({"cpu", "cuda"})

    # Fusing moves roundings and nothing else: over 30 steps of a small llama the losses differed
    # from eager ones by 1e-7 in float32 and 7e-5 in bfloat16. This leaves a factor of ten.
    loss_tolerance: ClassVar[float | None] = 1e-3

    def __init__(self, options: TorchCompileOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._cache: CompileCache | None = None
        self._capture: Capture | None = None

    def claims(self) -> frozenset[str]:
        """Return the hook that only this plugin may implement in a run, `compile_model`."""
        return frozenset({"compile_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield missing requirements: a GPU for CUDA graphs, a Python package, or a compiler."""
        device = experiment.scenario.resources.device
        if device == "cpu" and self.options.asks_cudagraphs and self.options.mode != "max-autotune":
            yield "CUDA graphs need a GPU; on a CPU use mode: default"
        if self.options.backend == "thunder":
            from accel_bench_compile.thunder_backend import missing_thunder

            versions = {**machine.versions, **machine.libraries}
            yield from filter(None, [missing_thunder(versions)])
        if self.options.uses_inductor:
            yield from _missing_tools(device, machine)

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Request untimed steps before round 1 to fill inductor's disk cache, if it is kept."""
        if self.options.uses_inductor and self.options.cache == "warm":
            run.rehearsal = True

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Set the folders of inductor's and triton's disk caches."""
        variables = Variables()
        run.on_close(variables.put_back)
        variables.remember(*SET_BY_TORCH)
        if not self.options.uses_inductor:
            return
        self._cache = CompileCache(self.options.cache, run, variables)
        run.on_close(self._cache.close)
        if available_cores() <= FEW_CORES:
            variables.offer("TORCHINDUCTOR_COMPILE_THREADS", "1")

    @hookimpl
    def compile_model(self, run: Run) -> None:
        """Compile the model in place. The evidence is complete after the first steps."""
        from accel_bench_compile.cudagraphs import Capture
        from accel_bench_compile.impl import CompiledModules

        compilation = CompiledModules(run.model, self.options, run.scenario.generates)
        run.on_close(compilation.undo)
        if self.options.asks_cudagraphs and run.device.type == "cuda":
            self._capture = Capture(run.device.index)
        run.on_evidence(lambda: self._evidence(compilation))

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        """Count the CUDA graphs that were recorded before the measured window."""
        if self._capture is not None:
            self._capture.start()

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterator[Metric]:
        """Yield the metric `cuda_graphs`, the number of recorded graphs, if graphs are requested.

        If the window did not use them, the metric has the reason, and the run is `degraded`: torch
        skips requested CUDA graphs without an error.
        """
        if self._capture is None:
            return
        self._capture.finish()
        problem = self._capture.problem()
        yield Metric(
            name="cuda_graphs",
            value=self._capture.graphs,
            unit="1",
            scope="rank",
            reason=problem,
            degrades=bool(problem),
        )

    def _evidence(self, compilation: CompiledModules) -> dict[str, Any]:
        """Return JSON evidence of a compilation: modules, seconds, disk cache, and CUDA graphs."""
        counts = compilation.evidence()
        lookups = [counts[f"graph_cache_{name}"] for name in ("hits", "misses", "bypasses")]
        return {
            **counts,
            **({"cache": None} if self._cache is None else self._cache.evidence(*lookups)),
            "cudagraphs": None if self._capture is None else self._capture.evidence(),
        }


def _missing_tools(device: str, machine: Machine) -> Iterator[str]:
    """Yield a reason for each thing that inductor lacks: a C or C++ compiler, or Python's headers.

    The C++ compiler is needed for code on a CPU, the C compiler for launchers of GPU kernels.
    """
    if machine.c_compiler is None:
        yield "inductor needs a C compiler and none was found; install gcc or set CC"
    elif device == "cpu" and not _cpp_compiler():
        yield "on a CPU inductor needs a C++ compiler and none was found; install g++ or set CXX"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        yield (
            "inductor compiles against Python.h and it was not found; "
            "install Python's development headers (python3-dev)"
        )


def _cpp_compiler() -> str | None:
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual))
