"""Errors for users: each message names the culprit and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"
"""Folder of this project's plugins in a checkout; it does not exist beside an installed wheel."""


class AccelBenchError(Exception):
    """Base of all errors raised for users; the message is complete as it stands.

    `exit_code` is the exit code of the program if nothing handles the error.
    """

    exit_code = 2


class ScenarioError(AccelBenchError):
    """A scenario file or an override of it cannot be used as written."""


class PluginError(AccelBenchError):
    """A plugin is unknown, broken, wrongly configured or in conflict with another."""


class NothingToRunError(AccelBenchError):
    """Every experiment of the plan is excluded by a constraint."""

    exit_code = 3


class HardwareError(AccelBenchError):
    """A device is not in the table of peak FLOP/s, or the table's file cannot be used."""


class PriceError(AccelBenchError):
    """A price is unknown, ambiguous or badly written."""


class ImportFileError(AccelBenchError):
    """A file of another program cannot be imported."""


class BundleError(AccelBenchError):
    """A bundle of stored sessions cannot be made, or differs from what its manifest states."""


class StoreError(AccelBenchError):
    """The results folder or its database cannot be used."""


class NoResultsError(StoreError):
    """The results folder holds no results."""


class UnreadableResultError(StoreError):
    """A result would be stored in a form that cannot be read back."""


class ResultTooLargeError(UnreadableResultError):
    """A result is larger than the largest row that can be read back."""


class StoreUnavailableError(StoreError):
    """The disk or another process prevents access to the store."""

    exit_code = 1


class WorkerError(AccelBenchError):
    """A known kind of failure inside the measured process; `reason` explains it in a result."""

    exit_code = 1

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message


class HookError(WorkerError):
    """Error of a plugin's hook, which raised or returned a value of the wrong type.

    `plugin`, `distribution` and `hook` name the culprit; `__cause__` is the original exception.
    """

    exit_code = 2
    """Exit code of the program for a hook that fails before any run has started."""

    def __init__(self, plugin: str, distribution: str, hook: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} ({distribution}) failed in {hook}: {problem}")
        self.plugin = plugin
        self.distribution = distribution
        self.hook = hook
        self.problem = problem


class InvalidRunError(WorkerError):
    """A run did not do the work that its scenario states; `reasons` are stored with the result."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


def install_command(extra: str) -> str:
    """Return the shell command that installs an extra of accel-bench in this environment."""
    package = install_package(extra)
    where = " in a checkout of accel-bench" if package.startswith("./") else ""
    return f"pip install {package}{where}"


def install_package(extra: str) -> str:
    """Return what follows `pip install` to install an extra of accel-bench: in a checkout the
    folders of its plugins, else `'accel-bench[NAME]'`."""
    from importlib import metadata

    from packaging.requirements import Requirement

    required = map(Requirement, metadata.requires("accel-bench") or () if PLUGINS.is_dir() else ())
    ours = (need for need in required if need.name.startswith("accel-bench-") and need.marker)
    names = [need.name for need in ours if need.marker and need.marker.evaluate({"extra": extra})]
    folders = [f"./plugins/{name.removeprefix('accel-bench-')}" for name in names]
    return " ".join(folders) or f"'accel-bench[{extra}]'"


FEW = 8
"""Largest number of known names that a message lists in full."""


FORMER_NAMES = {
    "disowned": "failed_audit",
    "disturbances": "instabilities",
    "fate": "outcome",
    "forget_compilation": "reset_compiler",
    "realised": "effective",
    "repeats": "rounds",
    "samples": "sequences",
    "sitting": "session",
}
"""Former names of keys, fields and functions, with today's names."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a message about a word that is not `known`: `; did you mean 'x'?` for a
    near name. Else it is `; known: ...`, or empty without known names. Of more than FEW names, the
    nearest three are listed: `; known: 71 names, the nearest a, b, c`."""
    import difflib

    names = sorted(set(known))
    former = FORMER_NAMES.get(word)
    same = [name for name in names if name.lower() == word.lower() or name == former]
    inside = [name for name in names if len(word) > 2 and word in name]
    near = same or difflib.get_close_matches(word, names, n=1, cutoff=0.6) or inside[:1]
    if near:
        return f"; did you mean {near[0]!r}?"
    if len(names) > FEW:
        nearest = difflib.get_close_matches(word, names, n=3, cutoff=0.0)
        return f"; known: {len(names)} names, the nearest {', '.join(nearest)}"
    return f"; known: {', '.join(names)}" if names else ""
