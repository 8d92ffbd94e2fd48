"""Start of the observer in a Python process: waits for torch, then watches its optimizers.

Python imports this module at startup, since its folder is the first of PYTHONPATH in an observed
command and its child processes, and only there. The module then imports another `sitecustomize`
that it hides. A process that never imports torch only has one more entry in `sys.meta_path`.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys

TYPE_CHECKING = False  # Every Python process of the command imports this file: `typing` is slow.
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


class WaitForTorch:
    """Import finder that starts the observer once, after torch is imported."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Return torch's spec with a loader that starts the observer; None for other modules."""
        if name != "torch":
            return None
        finders = [
            finder for finder in sys.meta_path if finder is not cls and hasattr(finder, "find_spec")
        ]
        specs: Any = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            spec.loader = ThenObserve(spec.loader)
        return spec


class ThenObserve:
    """Loader that wraps torch's own loader, and starts the observer after the import."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: Any) -> Any:
        """Return the module that torch's own loader creates."""
        return self._own.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Import torch, then start the observer. A failing observer does not affect the command."""
        module.__spec__.loader = module.__loader__ = self._own
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not WaitForTorch]
        self._own.exec_module(module)
        try:
            _start(module)
        except Exception as error:
            print(f"accel-bench: the observer does not work here: {error!r}", file=sys.stderr)


def _start(torch: Any) -> None:
    """Import the package `watching` under a private name, and start the observer."""
    package = os.path.join(FOLDER, "watching")
    spec: Any = importlib.util.spec_from_file_location(
        "_accel_bench_ab_watching",
        os.path.join(package, "__init__.py"),
        submodule_search_locations=[package],
    )
    watch = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = watch
    spec.loader.exec_module(watch)
    watch.start(torch, os.environ["ACCEL_BENCH_AB"])


def _import_hidden() -> None:
    """Import another `sitecustomize` module that this module hides, if any."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "ACCEL_BENCH_AB" in os.environ:
    # Modules of the command may have the names of the observer's.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != FOLDER]
    sys.meta_path.insert(0, WaitForTorch)
    _import_hidden()
