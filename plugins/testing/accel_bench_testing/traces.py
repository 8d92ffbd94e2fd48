"""Traces of a run: threads, processes and files that outlive it, and text that it prints."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from accel_bench.job import Job
from accel_bench.machine.scheduling import running_children

LIBRARIES = frozenset(
    {
        "accelerate",
        "datasets",
        "filelock",
        "fsspec",
        "huggingface_hub",
        "numpy",
        "pandas",
        "peft",
        "safetensors",
        "scipy",
        "sympy",
        "tokenizers",
        "torch",
        "tqdm",
        "transformers",
        "triton",
    }
)
"""Packages that keep threads, processes and caches of their own after their first use."""

PROCESSES = ("os.fork", "os.forkpty", "os.posix_spawn", "subprocess.Popen")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND

JOIN_SECONDS = 0.5
"""Seconds within which a thread must end when it is joined."""

NO_FILES = ("/dev", "/proc", "/sys")
"""Folders whose files never count as left behind."""


@dataclass
class Traces:
    """Record of threads, processes and files that plugins' code has started or written since
    `watch`, with the modules that did so."""

    job: Job
    """Job of the run, whose folder and cache may keep files."""

    threads: list[tuple[threading.Thread, str]] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    started_by: str = ""
    """Name of the module that last started a process."""

    printed: dict[str, str] = field(default_factory=dict)
    """First text that each module has printed, by module."""

    children: frozenset[int] = field(default_factory=lambda: frozenset(running_children()))
    processes: tuple[str, ...] = ()
    """Command lines of the processes recorded by `note_processes`."""

    def left(self) -> Iterator[str]:
        """Stop watching, and yield a sentence for each thread, process or file left behind."""
        _Watching.traces = None
        threading.Thread.start = _START  # type: ignore[method-assign]
        if isinstance(sys.stdout, NotedOutput):
            sys.stdout = sys.stdout.inner
        for thread, module in self.threads:
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                yield f"the thread {thread.name!r} that {module} has started still runs"
        for command in self.processes:
            yield f"the process {command!r} that {self.started_by} has started still runs"
        yield from self._files()

    def _files(self) -> Iterator[str]:
        """Yield sentences on files written to places where a plugin may leave none."""
        folder, job = Path(self.job.folder).resolve(), self.job
        cores = {job.path(), job.result_path(0), job.log_path(0), job.heartbeat_path(0)}
        allowed = (folder, Path(job.cache_folder).resolve(), *NO_FILES)
        for path, module in sorted(self.paths.items()):
            if Path(path).exists() and not any(Path(path).is_relative_to(root) for root in allowed):
                yield f"{module} has written {path}, which is outside of run.folder and run.cache"
            elif Path(path) in {folder / core.name for core in cores}:
                yield f"{module} has written {Path(path).name} of run.folder, which is core's"

    def note_processes(self) -> None:
        """Record processes that still run, before the runner ends those that hooks started."""
        left = sorted({*running_children()} - self.children) if self.started_by else ()
        self.processes = tuple(map(_command, left))

    def note(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Record an audit event of `sys.addaudithook`, if a plugin's code caused it."""
        module = _author()
        if not module:
            return
        if event in PROCESSES:
            self.started_by = module
        elif event == "os.mkdir" or (event == "open" and _writes(*arguments[1:3])):
            path = arguments[0]
            # A file without a name is opened by that of its folder.
            if isinstance(path, str | bytes | os.PathLike) and not Path(os.fsdecode(path)).is_dir():
                self.paths[os.path.realpath(os.fsdecode(path))] = module


_START = threading.Thread.start


class _Watching:
    """Holder of the current `Traces`, to which this process's single audit hook reports events."""

    traces: Traces | None = None
    hooked = False


class NotedOutput(io.TextIOBase):
    """Standard output that records texts written by plugins' code."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def write(self, text: str) -> int:
        """Write a text to the inner stream, and record the first text of each plugin module that
        prints. Return the number of characters written."""
        if _Watching.traces is not None and text.strip() and (module := _author()):
            _Watching.traces.printed.setdefault(module, text.strip())
        return int(self.inner.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def note_processes() -> None:
    """Record the running child processes if a run is being watched."""
    if _Watching.traces is not None:
        _Watching.traces.note_processes()


def watch(job: Job) -> Traces:
    """Start watching threads, processes, files and output of plugins' code; return their traces.

    `job` is the job of the watched run, which may leave files in its folder and cache.
    """
    _Watching.traces = Traces(job)
    sys.stdout = NotedOutput(sys.stdout)
    if not _Watching.hooked:
        _Watching.hooked = True
        events = {*PROCESSES, "open", "os.mkdir"}

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in events and _Watching.traces is not None:
                _Watching.traces.note(event, arguments)

        sys.addaudithook(hook)
    threading.Thread.start = _noted_start  # type: ignore[assignment,method-assign]
    return _Watching.traces


def _noted_start(thread: threading.Thread) -> None:
    """Start a thread in place of `Thread.start`, and record the plugin's module that starts it."""
    if _Watching.traces is not None and (module := _author()):
        _Watching.traces.threads.append((thread, module))
    _START(thread)


def is_library(module: str) -> bool:
    """Return whether the module named `module` is of core, of this kit, or of a package in
    LIBRARIES."""
    package = module.partition(".")[0]
    core = package == "accel_bench" and not module.startswith("accel_bench.builtin.")
    return core or package in {__package__, *LIBRARIES}


def _author() -> str:
    """Return the name of the plugin module that calls the standard library; an empty string for
    another caller."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module != __name__ and module.partition(".")[0] not in sys.stdlib_module_names:
            return "" if is_library(module) else module
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def _writes(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not {"w", "a", "x", "+"}.isdisjoint(mode)
    return isinstance(flags, int) and bool(flags & WRITES)


def _command(pid: int) -> str:
    words = []
    with contextlib.suppress(psutil.Error):
        words = psutil.Process(pid).cmdline()
    return " ".join(words).strip()[:80] or str(pid)
