"""Find installed software that does not work together, from metadata alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import metadata

from packaging.requirements import Requirement

from accel_bench.documents.base import Frozen
from accel_bench.machine.info import RELEVANT, Machine
from accel_bench.machine.libraries import Rule, known_distributions, read_libraries
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.registry import unmet_requirement


class Conflict(Frozen):
    """A rule that holds here."""

    found: dict[str, str]
    """Versions of what it is about, by name; empty for what is not installed."""

    because: str
    """The effect, in a sentence."""

    do: str
    """What helps."""


def incompatibilities(machine: Machine, torch_cuda: str | None) -> tuple[Conflict, ...]:
    """Return the conflicts: known pairs, versions that a library rules out, torch's build.

    `torch_cuda` is the CUDA version that torch is built for; None for a build without CUDA.
    """
    return (
        *_conflicts(read_libraries().incompatible),
        *_ruled_out(dict.fromkeys((*RELEVANT, *known_distributions()))),
        *_wrong_build(machine, torch_cuda),
    )


def changes_of_every_stack() -> tuple[Conflict, ...]:
    """Return what changes every stack as soon as it is installed, without being a fault."""
    return tuple(_conflicts(read_libraries().changes_every_stack))


def _conflicts(rules: Iterable[Rule]) -> Iterator[Conflict]:
    """Yield a conflict for each rule that holds here."""
    for rule in rules:
        lacks = not rule.missing or any(map(unmet_requirement, rule.missing))
        if lacks and not any(map(unmet_requirement, rule.when)):
            names = [Requirement(text).name for text in (*rule.when, *rule.missing)]
            versions = {name: distribution_version(name) for name in names}
            yield Conflict(found=versions, because=rule.because, do=rule.do)


def _ruled_out(names: Iterable[str]) -> Iterator[Conflict]:
    """Yield unmet requirements of the known libraries, like `pip check`."""
    for name in names:
        try:
            requires = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        if unmet := list(filter(None, map(unmet_requirement, requires))):
            version = distribution_version(name)
            yield Conflict(
                found={name: version},
                because=f"{name} {version} requires something else: {'; '.join(unmet)}",
                do=f"pip install --upgrade {name} with versions that fit, in an environment of "
                "its own",
            )


def _wrong_build(machine: Machine, torch_cuda: str | None) -> Iterator[Conflict]:
    """Yield a conflict for a torch that cannot use the GPUs of this machine."""
    if not machine.gpus:
        return
    torch = machine.versions.get("torch", "")
    found = {"torch": torch, "driver": machine.driver or ""}
    if torch.endswith("+cpu"):
        yield Conflict(
            found=found,
            because=f"{machine.gpus[0].name} is here, and torch is built for CPUs only",
            do="install a torch that is built for CUDA: see https://pytorch.org/get-started",
        )
    elif torch_cuda and machine.cuda and _major(torch_cuda) > _major(machine.cuda):
        yield Conflict(
            found=found,
            because=f"torch is built for CUDA {torch_cuda}, the driver knows up to {machine.cuda}",
            do=f"upgrade the driver, or install a torch that is built for CUDA {machine.cuda}",
        )


def _major(version: str) -> int:
    # A driver runs every minor version of its CUDA.
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0
