"""Make bundles: take out secrets and names, and write members with their checksums."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_bench._version import __version__
from accel_bench.documents.anonymity import Anonymizer, names_within
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.files import write_atomically
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import BundleError
from accel_bench.interchange.archive import pack
from accel_bench.interchange.bundle import (
    MANIFEST,
    RUNS,
    SESSIONS,
    Manifest,
    checksum_of,
    json_member,
    manifest_value,
    member_of,
    read_bundle,
)
from accel_bench.machine.measurer import pseudonym
from accel_bench.result import Result
from accel_bench.store.records import redact_result
from accel_bench.store.sessions import SessionRecord


@dataclass(frozen=True)
class Content:
    """What is put into a bundle; it is anonymous already."""

    sessions: Sequence[SessionRecord]
    results: Sequence[Result]
    baseline: str
    texts: Mapping[str, str]
    """Further members: `scenario.yaml`, `conclusion.md` and what only people read."""


def anonymous(
    sessions: Sequence[SessionRecord], results: Sequence[Result]
) -> tuple[list[SessionRecord], list[Result]]:
    """Return both without secrets, trackers, options of launchers, and names of people, hosts,
    folders and jobs.

    Raises BundleError where such a name is a word without which a run cannot be read.
    """
    results = [redact_result(result) for result in results]
    dumped = [_public_result(result.model_dump(mode="json")) for result in results]
    redactor = Redactor.of_this_process()
    records = [
        redactor.redact_value(_without_private(session).model_dump(mode="json"))
        for session in sessions
    ]
    known = names_within(Result.model_json_schema()) | names_within(
        SessionRecord.model_json_schema()
    )
    texts = map(canonical_json, (*dumped, *records))
    keep = known | _words_of(results)
    anonymizer = Anonymizer.of_texts(texts, {*_hosts(results)}, keep)
    try:
        return (
            [_valid(SessionRecord, anonymizer.value(one)) for one in records],
            [_valid(Result, anonymizer.value(_without_hosts(one, anonymizer))) for one in dumped],
        )
    except ValueError as error:
        raise BundleError(f"a run cannot be read without a name that is in it: {error}") from error


def _without_private(session: SessionRecord) -> SessionRecord:
    """Return a session without what names things inside a team: its job, trackers and queues."""
    document = {key: one for key, one in session.document.items() if key != "job"}
    for name in ("scenario", "written"):
        if isinstance(scenario := document.get(name), dict):
            document[name] = _public_scenario(scenario)
    command = tuple(_without_overrides(session.command, "(trackers|launcher)"))
    return session.model_copy(update={"document": document, "command": command})


def _public_scenario(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario without its trackers, and its launcher by name alone."""
    kept = {key: one for key, one in scenario.items() if key != "trackers"}
    if isinstance(launcher := kept.get("launcher"), dict):
        kept["launcher"] = {key: one for key, one in launcher.items() if key == "use"}
    return kept


def _public_result(result: dict[str, Any]) -> dict[str, Any]:
    experiment = result["experiment"]
    scenario = _public_scenario(experiment["scenario"])
    return {**result, "experiment": {**experiment, "scenario": scenario}}


def _without_overrides(command: Sequence[str], keys: str) -> Iterator[str]:
    """Yield the arguments but `--set KEY=...`, in each of its spellings."""
    pattern = re.compile(rf"(--set[= ])?{keys}[.=]")
    arguments = iter(command)
    for argument in arguments:
        if argument == "--set":
            value = next(arguments, "")
            if not pattern.match(value):
                yield from (argument, value)
        elif not pattern.match(argument):
            yield argument


def write_bundle(path: Path, content: Content) -> Manifest:
    """Write the file of a bundle, the same bytes for the same content; return its manifest."""
    lines = [one.model_dump_json() for one in content.results]
    members = {name: text.encode() for name, text in content.texts.items()}
    members[SESSIONS] = json_member([one.model_dump(mode="json") for one in content.sessions])
    members[RUNS] = gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)
    manifest = _manifest(content, members)
    members[MANIFEST] = json_member(manifest_value(manifest))
    write_atomically(path, pack(members))
    try:
        read_bundle(path)  # what cannot be read again is no bundle
    except BundleError:
        path.unlink()
        raise
    return manifest


def _manifest(content: Content, members: Mapping[str, bytes]) -> Manifest:
    first = min(content.sessions, key=lambda one: one.started_at)
    repeats = str(first.document.get("repeats", ""))
    identity = hashlib.sha256(members[SESSIONS] + gzip.decompress(members[RUNS])).hexdigest()
    unsigned = Manifest(
        written_by=__version__,
        scenario=first.scenario,
        started_at=first.started_at,
        baseline=content.baseline,
        sessions=tuple(one.id for one in content.sessions),
        repeats=repeats,
        measured_by=pseudonym(repeats or identity),
        members=tuple(member_of(name, members[name]) for name in sorted(members)),
        sha256="",
    )
    return unsigned.model_copy(update={"sha256": checksum_of(unsigned)})


def _valid(model: type[Any], value: Any) -> Any:
    return model.model_validate_json(canonical_json(value))


def _without_hosts(result: dict[str, Any], anonymizer: Anonymizer) -> dict[str, Any]:
    """Return a result whose fields for names of hosts hold none, however short they are."""
    machine, nodes = result["machine"], result["nodes"]
    if machine:
        machine = {**machine, "host": anonymizer.host(machine["host"])}
    hosts = ({key: anonymizer.host(node[key]) for key in ("name", "address")} for node in nodes)
    nodes = [{**node, **names} for node, names in zip(nodes, hosts, strict=True)]
    return {**result, "machine": machine, "nodes": nodes}


def _hosts(results: Sequence[Result]) -> Iterator[str]:
    """Yield names and addresses of the machines that took part."""
    for result in results:
        yield from (result.machine.host,) if result.machine else ()
        for node in result.nodes:
            yield from (node.name, node.address)


def _words_of(results: Sequence[Result]) -> set[str]:
    """Return names of plugins, stacks and scenarios, which a user may share with them."""
    found = {plugin.name for result in results for plugin in result.plugins}
    for experiment in (result.experiment for result in results):
        found |= {experiment.stack.name, experiment.scenario.name}
        found |= {use.use for use in (*experiment.stack.uses, *experiment.scenario.metrics)}
        found |= {getattr(experiment.scenario, slot).use for slot in experiment.scenario.SLOTS}
    return found
