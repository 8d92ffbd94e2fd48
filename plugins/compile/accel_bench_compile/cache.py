"""Inductor's disk cache of a run: kept for later runs, or empty and temporary."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from accel_bench import Run
from accel_bench_compile.environment import Variables

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
"""Environment variables of the cache folders of inductor and triton."""


class CompileCache:
    """The cache folder of one run, from the hook `prepare_process` to the hook `close_run`."""

    def __init__(self, asked: Literal["warm", "cold"], run: Run, variables: Variables) -> None:
        """Choose the cache folder, and set it for inductor and triton in `variables`.

        `asked` is the option `cache`. A warm cache is the user's own if set, else one in the run's
        cache folder for the compiler's version and the other plugins. A cold cache is new for each
        rank, since another rank's compilation would warm it.
        """
        self.asked = asked
        self.set_by = "plugin"
        if asked == "cold":
            self.folder = Path(tempfile.mkdtemp(prefix="inductor-", dir=run.folder))
            variables.set(INDUCTOR, str(self.folder))
            variables.set(TRITON, str(self.folder / "triton"))
        else:
            kept = run.cache("inductor", _contents(run), lambda folder: None)
            variables.offer(INDUCTOR, str(kept))
            self.folder = Path(os.environ[INDUCTOR])
            self.set_by = "plugin" if self.folder == kept else "environment"
            variables.offer(TRITON, str(self.folder / "triton"))
        self.was_empty = not (self.folder.is_dir() and any(self.folder.iterdir()))
        _forget_in_memory()

    def evidence(self, hits: int | None, misses: int | None, bypasses: int) -> dict[str, Any]:
        """Return JSON evidence of the cache: requested and effective state, and who set the folder.

        The arguments are counts of lookups in this run; None if unknown. A cache that was empty
        stays `cold` if graphs compiled in this run are found in it again.
        """
        return {
            "cache_asked": self.asked,
            "cache": self._found(hits, misses, bypasses),
            "cache_was_empty": self.was_empty,
            "cache_set_by": self.set_by,
        }

    def close(self) -> None:
        """Remove a cold cache, after clearing the in-memory caches that refer to it."""
        _forget_in_memory()
        if self.asked == "cold":
            shutil.rmtree(self.folder, ignore_errors=True)

    def _found(self, hits: int | None, misses: int | None, bypasses: int) -> str | None:
        """Return `warm` if all lookups hit, `cold` if none did or the cache was empty, else
        `partly`; None if no lookup was counted."""
        if hits is None or misses is None or not hits + misses + bypasses:
            return None
        if self.was_empty or not hits:
            return "cold"
        return "partly" if misses or bypasses else "warm"


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _contents(run: Run) -> dict[str, Any]:
    """Return versions and plugins that change compiled code and that torch's own cache keys omit.

    The key of autograd's cache in torch 2.11 omits the choice of attention backends (pytorch issues
    185449, 186458), so that a stack would get another stack's code.
    """
    versions = {name: installed_version(name) for name in ("torch", "triton")}
    others = [use.model_dump(mode="json") for use in run.stack.uses if use.use != "torch-compile"]
    return {"python": sys.version, **versions, "stack": others}


def _forget_in_memory() -> None:
    """Clear inductor's in-memory caches and cached paths.

    If the process has not imported inductor, it does nothing.
    """
    loaded = sys.modules.get("torch._inductor.utils")
    forget = getattr(loaded, "clear_caches", None)
    if forget is not None:
        forget()
