"""Runs without secrets and without names of people, hosts and folders, ready for publication."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.redaction import Redactor
from accel_bench.errors import BundleError
from accel_bench.result import Result
from accel_bench.store.records import redact_result
from accel_bench.store.sessions import SessionRecord
from accel_bench_share.anonymizer import Anonymizer, names_within


def anonymous(
    sessions: Sequence[SessionRecord], results: Sequence[Result], texts: Sequence[str] = ()
) -> tuple[list[SessionRecord], list[Result], list[str]]:
    """Return sessions and results without private data, and texts without names.

    Secrets, trackers, launchers' options, and names of people, hosts, folders and jobs are removed.
    Raises BundleError if a run cannot be read without such a name.
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
    keep = known | _words_of(results)
    read = (*map(canonical_json, (*dumped, *records)), *texts)
    anonymizer = Anonymizer.of_texts(read, {*_hosts(results)}, keep)
    try:
        return (
            [_valid(SessionRecord, anonymizer.value(record)) for record in records],
            [_valid(Result, anonymizer.value(_without_hosts(run, anonymizer))) for run in dumped],
            [anonymizer.text(text) for text in texts],
        )
    except ValueError as error:
        raise BundleError(f"a run cannot be read without a name that is in it: {error}") from error


def _without_private(session: SessionRecord) -> SessionRecord:
    """Return a session without the names of its job, its trackers and its launcher's options."""
    document = {key: value for key, value in session.document.items() if key != "job"}
    for name in ("scenario", "written"):
        if isinstance(scenario := document.get(name), dict):
            document[name] = _public_scenario(scenario)
    command = tuple(_without_overrides(session.command))
    return session.model_copy(update={"document": document, "command": command})


def _public_scenario(scenario: dict[str, Any]) -> dict[str, Any]:
    """Return a scenario without trackers, and with only the name of its launcher."""
    kept = {key: value for key, value in scenario.items() if key != "trackers"}
    if isinstance(launcher := kept.get("launcher"), dict):
        kept["launcher"] = {key: value for key, value in launcher.items() if key == "use"}
    return kept


def _public_result(result: dict[str, Any]) -> dict[str, Any]:
    experiment = result["experiment"]
    scenario = _public_scenario(experiment["scenario"])
    return {**result, "experiment": {**experiment, "scenario": scenario}}


def _without_overrides(command: Sequence[str]) -> Iterator[str]:
    """Yield a command's arguments without overrides of trackers and of the launcher.

    An override is `--set KEY=...` in any of its spellings.
    """
    pattern = re.compile(r"(--set[= ])?(trackers|launcher)[.=]")
    arguments = iter(command)
    for argument in arguments:
        if argument == "--set":
            value = next(arguments, "")
            if not pattern.match(value):
                yield from (argument, value)
        elif not pattern.match(argument):
            yield argument


def _valid(model: type[Any], value: Any) -> Any:
    return model.model_validate_json(canonical_json(value))


def _without_hosts(result: dict[str, Any], anonymizer: Anonymizer) -> dict[str, Any]:
    """Return a result with replaced names in all fields for hosts, even names of one letter."""
    machine, nodes = result["machine"], result["nodes"]
    if machine:
        machine = {**machine, "host": anonymizer.host(machine["host"])}
    hosts = ({key: anonymizer.host(node[key]) for key in ("name", "address")} for node in nodes)
    nodes = [{**node, **names} for node, names in zip(nodes, hosts, strict=True)]
    return {**result, "machine": machine, "nodes": nodes}


def _hosts(results: Sequence[Result]) -> Iterator[str]:
    """Yield the host names and addresses of the machines of the runs."""
    for result in results:
        yield from (result.machine.host,) if result.machine else ()
        for node in result.nodes:
            yield from (node.name, node.address)


def _words_of(results: Sequence[Result]) -> set[str]:
    """Return the names of plugins, stacks and scenarios in runs; a user may have such a name."""
    words = {plugin.name for result in results for plugin in result.plugins}
    for experiment in (result.experiment for result in results):
        words |= {experiment.stack.name, experiment.scenario.name}
        words |= {use.use for use in (*experiment.stack.uses, *experiment.scenario.metrics)}
        words |= {getattr(experiment.scenario, slot).use for slot in experiment.scenario.SLOTS}
    return words
