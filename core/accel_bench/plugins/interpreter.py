"""Environment of another Python interpreter: packages and plugins in it, unmet requirements."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from accel_bench.documents.base import Frozen
from accel_bench.machine.info import Machine


class EnvironmentPlugin(Frozen):
    """Plugin installed in another interpreter's environment."""

    name: str
    distribution: str

    unmet: tuple[str, ...]
    """Unmet requirements; empty for a usable plugin."""


class Interpreter(Frozen):
    """Another Python interpreter that has accel-bench, and the packages of its environment."""

    schema_version: int
    """Schema version of the jobs that the interpreter's accel-bench reads."""

    contract: str = ""
    """Digest of the fields of jobs and results in the interpreter's accel-bench; empty if
    unknown."""

    accel_bench: str
    """Version of the interpreter's accel-bench."""

    command: tuple[str, ...]
    """Command that starts the interpreter, without the working folder on its path."""

    machine: Machine
    """This machine, with the versions of the interpreter's environment."""

    distributions: dict[str, str]
    """Versions by canonical name; with the commit if plugins come from a checkout."""

    plugins: tuple[EnvironmentPlugin, ...]

    def on(self, machine: Machine) -> Machine:
        """Return a copy of `machine` with this environment's versions of Python and packages."""
        ours = self.machine.model_dump(include={"python", "versions", "libraries"})
        return machine.model_copy(update=ours)

    def unmet(self, name: str, distribution: str) -> tuple[str, ...]:
        """Return reasons why a plugin cannot be used in this environment; empty if it can."""
        wanted = (name.rpartition(":")[2], canonicalize_name(distribution))
        for plugin in self.plugins:
            if (plugin.name, canonicalize_name(plugin.distribution)) == wanted:
                return tuple(f"{reason} (in {self.command[0]})" for reason in plugin.unmet)
        return (f"{distribution}, which brings it, is not installed (in {self.command[0]})",)
