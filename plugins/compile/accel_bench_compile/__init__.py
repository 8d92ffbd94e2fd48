"""The plugin `torch-compile`: torch.compile on each decoder block, or on the whole model."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, hookimpl

if TYPE_CHECKING:
    from accel_bench_compile.impl import Compilation

FEW_CORES = 4
"""Up to here inductor compiles in the process itself: a pool would outnumber the cores."""


class TorchCompileOptions(Options):
    """How and what to compile; the names are those of `torch.compile`."""

    backend: str = Field("inductor", min_length=1)
    """What compiles the captured graphs; `eager` and `aot_eager` only capture them."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = None
    """Inductor's preset; null is `default`."""

    dynamic: bool | None = None
    """Whether shapes may vary; null lets the compiler find out at the second shape."""

    fullgraph: bool = False
    """Whether a graph break is an error."""

    scope: Literal["block", "model"] = "block"
    """`block`: each repeated decoder block, all sharing their code; `model`: everything as one."""

    @model_validator(mode="after")
    def _mode_is_inductors(self) -> TorchCompileOptions:
        """Refuse a mode for a backend that has none: torch would only fail at the first step."""
        if self.mode not in (None, "default") and self.backend != "inductor":
            raise ValueError(f"mode {self.mode!r} belongs to inductor, not to {self.backend!r}")
        return self


class TorchCompile(Plugin[TorchCompileOptions]):
    """torch.compile, in place, after all accelerations and before any wrapping."""

    Options = TorchCompileOptions
    devices = frozenset({"cpu", "cuda"})

    # Fusing moves roundings and nothing else: over 30 steps of a small llama the losses differed
    # from eager ones by 1e-7 in float32 and 7e-5 in bfloat16. This leaves a factor of ten.
    loss_tolerance: ClassVar[float | None] = 1e-3

    def __init__(self, options: TorchCompileOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._compilation: Compilation | None = None
        self._set_here: list[str] = []
        self._cache: dict[str, str] | None = None

    def claims(self) -> frozenset[str]:
        """Of the one-answer hooks, compiling."""
        return frozenset({"compile_model"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Say what inductor misses here: it writes C++ for a CPU, and C around its GPU kernels."""
        if self.options.backend != "inductor":
            return
        wanted = experiment.scenario.resources.device
        device = machine.device if wanted == "auto" else wanted
        if machine.c_compiler is None:
            yield ("inductor needs a C compiler and none was found; install gcc or set CC")
        elif device == "cpu" and not _cpp_compiler():
            yield (
                "on a CPU inductor needs a C++ compiler and none was found; install g++ or set CXX"
            )
        if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
            yield (
                "inductor compiles against Python.h and it was not found; "
                "install Python's development headers (python3-dev)"
            )

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Have a few untimed steps taken, so that inductor's caches are full before round 1."""
        if self.options.backend == "inductor":
            run.rehearsal = True

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Keep inductor's and triton's caches with the results, one folder for each version."""
        if self.options.backend != "inductor":
            return
        key = {
            "python": sys.version,
            "torch": _version("torch"),
            "triton": _version("triton"),
        }
        folder = run.cache("inductor", key, lambda folder: None)
        self._set("TORCHINDUCTOR_CACHE_DIR", str(folder))
        used = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
        self._cache = {
            "cache": "warm" if used.is_dir() and any(used.iterdir()) else "cold",
            "cache_set_by": "plugin" if used == folder else "environment",
        }
        self._set("TRITON_CACHE_DIR", str(used / "triton"))
        if _cores() <= FEW_CORES:
            self._set("TORCHINDUCTOR_COMPILE_THREADS", "1")

    @hookimpl
    def compile_model(self, run: Run) -> None:
        """Compile in place; what it really did is only known after the first steps."""
        from accel_bench_compile.impl import Compilation

        self._compilation = Compilation(run.model, self.options)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """What was compiled, how long that took, and what was left uncompiled."""
        if self._compilation is None:
            return {}
        return {**self._compilation.evidence(), **(self._cache or {"cache": None})}

    @hookimpl
    def close_run(self, run: Run) -> None:
        """Undo: the modules' compiled calls, the compiler's state, the environment."""
        if self._compilation is not None:
            self._compilation.undo()
            self._compilation = None
        for name in self._set_here:
            os.environ.pop(name, None)
        self._set_here.clear()

    def _set(self, name: str, value: str) -> None:
        """Set a variable that the user has not set, and remember to take it back."""
        if name not in os.environ:
            self._set_here.append(name)
            os.environ[name] = value


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpp_compiler() -> str | None:
    """The C++ compiler that inductor would call."""
    usual = "clang++" if sys.platform == "darwin" else "g++"
    return shutil.which(os.environ.get("CXX", usual))


def _version(distribution: str) -> str | None:
    """Version of a distribution from metadata, or None when it is not installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
