"""Every error that a user can meet: each names the culprit and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"
"""Folder of our plugins in a checkout; there is none where a wheel was installed."""


class AccelBenchError(Exception):
    """Base of all errors raised for users; the message is complete as it stands.

    `exit_code` is what the program exits with when nothing handles the error.
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
    """A device is not in the table of peaks, or the table's file cannot be used."""


class PriceError(AccelBenchError):
    """A price is unknown, ambiguous or badly written."""


class ImportFileError(AccelBenchError):
    """A file of another program cannot be imported."""


class BundleError(AccelBenchError):
    """A bundle cannot be made, or is not as it was made."""


class StoreError(AccelBenchError):
    """The results folder or its database cannot be used."""


class NoResultsError(StoreError):
    """Nothing was ever stored there."""


class UnreadableResultError(StoreError):
    """A result could not be read again if it were stored."""


class ResultTooLargeError(UnreadableResultError):
    """A result is larger than a row that can be read again."""


class StoreUnavailableError(StoreError):
    """The disk or another process is in the way: nothing in the user's input is wrong."""

    exit_code = 1


class WorkerError(AccelBenchError):
    """Something inside the measured process went wrong in a way that has a name."""

    exit_code = 1


class HookError(WorkerError):
    """A plugin's hook raised, or returned something of the wrong type.

    `plugin`, `distribution` and `hook` say whose fault it is; `__cause__` is the original
    exception.
    """

    exit_code = 2
    """Only what is called before anything starts reaches the program."""

    def __init__(self, plugin: str, distribution: str, hook: str, problem: str) -> None:
        super().__init__(f"plugin {plugin!r} ({distribution}) failed in {hook}: {problem}")
        self.plugin = plugin
        self.distribution = distribution
        self.hook = hook
        self.problem = problem


class InvalidRunError(WorkerError):
    """The run cannot mean what its numbers would say; `reasons` are stored with the result."""

    def __init__(self, reasons: Iterable[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(self.reasons))


def install_command(extra: str) -> str:
    """Return the command that brings an extra of accel-bench, as it works today."""
    package = install_package(extra)
    where = " in a checkout of accel-bench" if package.startswith("./") else ""
    return f"pip install {package}{where}"


def install_package(extra: str) -> str:
    """Return what pip installs for an extra of accel-bench: in a checkout the folder of a plugin of
    ours, elsewhere, and where it brings libraries alone, the extra itself.
    """
    from importlib import metadata

    from packaging.requirements import Requirement

    required = map(Requirement, metadata.requires("accel-bench") or () if PLUGINS.is_dir() else ())
    ours = (one for one in required if one.name.startswith("accel-bench-") and one.marker)
    names = [one.name for one in ours if one.marker and one.marker.evaluate({"extra": extra})]
    folders = [f"./plugins/{name.removeprefix('accel-bench-')}" for name in names]
    return " ".join(folders) or f"'accel-bench[{extra}]'"


FEW = 8
"""Names that are all listed where none is near."""


FORMER_NAMES = {
    "disturbances": "instabilities",
    "forget_compilation": "reset_compiler",
    "realised": "effective",
    "repeats": "rounds",
    "samples": "sequences",
    "sitting": "session",
}
"""Names that were called otherwise, keys, fields and functions, with the names of today."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?`, or which names are known if none is near, or nothing at all.

    Of more than FEW names, the nearest three are listed: `; known: 71 names, the nearest a, b, c`.
    """
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
