"""Limits of what a bundle's scenario, by somebody else, may set: which keys, paths and hosts."""

from __future__ import annotations

import contextlib
import copy
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from accel_bench.analysis.schema import Summary
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.redaction import FOLDER
from accel_bench.errors import AccelBenchError, BundleError, ScenarioError
from accel_bench.modeling.hosts import is_ip_address, is_loopback
from accel_bench.planning.plan import PlanRequest
from accel_bench.planning.resolve import ResolvedFile, resolve
from accel_bench.result import Provenance, Result
from accel_bench.scenario.draft import AXES, Draft
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import ScenarioFile
from accel_bench.scenario.sweep import Point
from accel_bench_share.bundle_reader import Bundle
from accel_bench_share.stack_reproduction import NOT_WORK, summarize_results

TAKEN = frozenset(
    """
    name description task mode model adapter data optimizer engine parallel metrics train resources
    inference evaluate measure environment slow stacks baseline sweep zip environments exclude tag
    """.split()
)
"""Keys of a scenario that a bundle may set; any other is refused."""

OWN = ("launcher", "trackers")
"""Keys that are left out, since this machine and the command line set them."""

NOT_RUN = ("name", "description", "exclude", "tag")
"""Keys with texts that are neither paths nor hosts."""

PLACES = re.compile(r"(^|[._])(folder|directory|dir|path|file)s?$")
"""Pattern of keys that name folders or files, also relative ones that do not exist yet."""

WORDS = re.compile(
    r"[^.]+|(.+\.)?use|stacks\.[^.]+\.description"
    r"|(environment|evaluate|inference|measure|resources|train)\..+"
)
"""Pattern of keys whose texts are names of plugins or fixed words, never paths."""

USES = re.compile(r"stacks\.[^.]+\.use")
"""Pattern of the key of a stack's plugins."""

ADDRESSES = re.compile(
    r"(^|[._])(addr|address|addresses|broker|endpoint|host|hostname|proxy|proxies|server|uri|url)s?$",
    re.IGNORECASE,
)
"""Pattern of keys that name hosts, in any form."""

HOST_AND_PORT = re.compile(r"([^\s/@]*@)?[\w-]+((\.[\w-]+)+:\d{1,5}|\.?:\d{3,5})(/\S*)?", re.ASCII)
"""Pattern of an address under any key; a host of one word needs a port unlike `cuda:0`."""


def draft_of(bundle: Bundle, overridden: Collection[str]) -> Draft:
    """Return a bundle's scenario as a draft, without its launcher and trackers.

    `overridden` are the dotted keys that the command line sets. Raises BundleError for a key that a
    bundle may not set, and, unless the key is overridden, for a path of this machine or the address
    of another host.
    """
    data = {key: copy.deepcopy(value) for key, value in bundle.scenario.items() if key not in OWN}
    for where, key in _keys(data):
        if key.partition(".")[0] not in TAKEN:
            raise BundleError(
                f"{bundle.file}: {where} sets {key!r}; a bundle may not choose that. What you want "
                f"of it, you choose: --set {key}=..."
            )
    for key, text in _texts(data, ""):
        if any(f"{key}.".startswith(f"{given}.") for given in overridden):
            continue
        if _is_elsewhere(key, text):
            raise BundleError(
                f"{bundle.file}: {key} is {text!r}, an address on another machine; a bundle may "
                f"not choose whom this one contacts. Name your own: --set {key}=ADDRESS"
            )
        if PLACES.search(key) or _is_path(key, text):
            raise BundleError(
                f"{bundle.file}: {key} is {text!r}, a path; a bundle may not choose files of this "
                f"machine. Name your own: --set {key}=PATH"
            )
    return Draft(f"{bundle.file}:scenario.yaml", data)


def _keys(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a pair for each key in a scenario: where it is, as `the stack 'a'`, and the key."""
    yield from (("the scenario", key) for key in data)
    for name, stack in data.get("stacks", {}).items():
        yield from ((f"the stack {name!r}", key) for key in stack.get("set", {}))
    for axis in AXES:
        yield from ((f"its {axis}", key) for key in data.get(axis, {}))


def request_of(bundle: Bundle, request: PlanRequest) -> PlanRequest:
    """Return `request`, restricted to the stacks and sweep points that the bundle has runs of."""
    experiments = [run.experiment for run in bundle.results]
    tags = {experiment.tag for experiment in experiments}
    stacks = {*(bundle.scenario.get("stacks") or {}), *request.plugins}
    return replace(
        request,
        only=(*request.plugins, *({experiment.stack.name for experiment in experiments} & stacks)),
        tags=() if "" in tags else tuple(sorted(tags)),
    )


def repeats(bundle: Bundle) -> Provenance:
    """Return the provenance to store with each run that reproduces a bundle: file and checksum."""
    return Provenance(file=PurePath(bundle.file).name, sha256=bundle.identity)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield pairs: the dotted key of each text inside a value of a scenario, and the text.

    `key` is the dotted key of the value, and empty for the whole scenario. The scenario's name,
    description and tags are left out, since they name no path and no host.
    """
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if key or name not in NOT_RUN:
                yield from _texts(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, _key_of_use(inner, key))


def _key_of_use(use: Any, key: str) -> str:
    """Return the dotted key that `--set` needs to change `use`, a plugin's entry in a stack.

    `key` is the dotted key of the list that has `use`; it is returned if `use` is no such entry.
    """
    named = use.get("use") if isinstance(use, Mapping) else None
    if named is None or not USES.fullmatch(key):
        return key
    return f"{key.rpartition('.')[0]}.{named}"


def _is_elsewhere(key: str, text: str) -> bool:
    """Return whether a text under a dotted key has an address that may be another machine's."""
    if text.startswith("file:"):
        return False  # It is a path, which is refused as one.
    named = bool(ADDRESSES.search(key))
    return any(_is_other_host(word, named) for word in re.split(r"[\s,;]+", text) if word)


def _is_other_host(text: str, named: bool) -> bool:
    """Return whether a text is another machine's address.

    `named` is True for a text under a key for addresses: any text there counts as an address.
    """
    is_url = "://" in text
    looks_so = is_url or is_ip_address(text) or HOST_AND_PORT.fullmatch(text) is not None
    if is_loopback(text) or not (named or looks_so):
        return False
    try:
        host = urlsplit(text if is_url else f"//{text}").hostname
    except ValueError:
        return True
    return host is None or not is_loopback(host)


def _is_path(key: str, text: str) -> bool:
    """Return whether a text under a dotted key is a path here, or was one before anonymization."""
    if text.startswith(("/", "~", "./", "file:", FOLDER)) or ".." in PurePath(text).parts:
        return True
    is_word = "/" not in text and WORDS.fullmatch(_written_key(key))
    return os.path.isfile(text) if is_word else os.path.exists(text)


def _written_key(key: str) -> str:
    """Return the key that a key inside a sweep or a stack's `set` changes, such as `train.seed`."""
    return re.sub(r"^(sweep|zip|stacks\.[^.]+\.set)\.", "", key)


def evaluated(bundle: Bundle) -> Summary:
    """Return the summary of the runs of a bundle.

    Raises BundleError if it cannot be computed from the author's numbers, or if the scenario does
    not match the runs.
    """
    with naming_the_bundle(bundle.file):
        if problem := problem_of_scenario(bundle.scenario, bundle.results):
            raise BundleError(
                f"{bundle.file}: refused, its scenario is not that of its runs: {problem}"
            )
        return summarize_results(bundle.results, bundle.manifest.baseline)


def problem_of_scenario(scenario: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return an error text on the first measured experiment that the scenario does not define.

    The text names the experiment and what differs, as the end of a sentence; it is empty if all are
    defined, and an error message if the scenario is invalid. Compared are stacks, swept values and
    the settings in the scenario.
    """
    data = {key: copy.deepcopy(value) for key, value in scenario.items() if key not in OWN}
    experiments = {run.experiment.id: run.experiment for run in results}
    points: dict[str, dict[str, Point]] = {}
    try:
        file = resolve(Draft("scenario.yaml", data), allow_environment=True)
        for experiment in experiments.values():
            place = canonical_json(experiment.sweep)
            if place not in points:
                points[place] = _points_of(file, experiment)
            if problem := _difference(points[place].get(experiment.stack.name), experiment):
                return f"{experiment.id} of the stack {experiment.stack.name!r} {problem}"
    except ScenarioError as error:
        return str(error)
    return ""


def _points_of(file: ResolvedFile, experiment: Experiment) -> dict[str, Point]:
    """Return by stack the resolved scenarios (points) of a file at an experiment's swept values.

    The dictionary is empty if the file does not have these values.
    """
    if not _is_swept(file.scenario, experiment.sweep):
        return {}
    device = experiment.scenario.resources.device
    return {point.stack.name: point for point in file.points_at(experiment.sweep, device)}


def _is_swept(file: ScenarioFile, sweep: Mapping[str, Any]) -> bool:
    """Return whether the swept values `sweep` are those of a sweep point of the file."""
    if {*sweep} != {*file.sweep, *file.zip}:
        return False
    rows = zip(*file.zip.values(), strict=True)
    linked = tuple(sweep[key] for key in file.zip)
    return (not file.zip or linked in rows) and all(
        sweep[key] in values for key, values in file.sweep.items()
    )


def _difference(point: Point | None, experiment: Experiment) -> str:
    """Return how an experiment differs from the scenario's `point`, such as `has another KEY`.

    `point` is None if the scenario does not define the experiment. The text is empty if both are
    equal.
    """
    if point is None:
        return "is not in it"
    if point.stack.uses != experiment.stack.uses:
        return "uses other plugins, or the same with other options"
    written = point.scenario.model_dump(mode="json", exclude_unset=True, exclude=NOT_WORK)
    measured = experiment.scenario.model_dump(mode="json")
    chosen = {*point.sizes}
    if point.provisional or chosen:  # the sizes of its batches are worked out later
        written.pop("train", None)
    other = (key for key in _other_keys(written, measured) if key not in chosen)
    return next((f"has another {key}" for key in other), "")


def _other_keys(written: Mapping[str, Any], found: Any, above: str = "") -> Iterator[str]:
    """Yield the dotted keys whose values in `written` and `found` differ, prefixed by `above`."""
    for name, value in written.items():
        there = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(value, Mapping) and value:
            yield from _other_keys(value, there, f"{above}{name}.")
        elif value != there:
            yield f"{above}{name}"


@contextlib.contextmanager
def naming_the_bundle(file: str) -> Iterator[None]:
    """Turn any exception in the block but an AccelBenchError into a BundleError that names `file`.

    One broken bundle thus does not keep the others from being read.
    """
    try:
        yield
    except AccelBenchError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise BundleError(f"{file}: refused, nothing can be computed with it ({reason})") from error
