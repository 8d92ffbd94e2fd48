"""Writer of bundles: collects stored sessions, anonymizes them, and adds readable members."""

from __future__ import annotations

import getpass
import gzip
import hashlib
import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_bench.analysis.schema import Summary
from accel_bench.documents.canonical import canonical_json
from accel_bench.documents.files import write_atomically
from accel_bench.documents.program import __version__
from accel_bench.documents.validate import validate
from accel_bench.errors import BundleError, StoreError
from accel_bench.machine.caches import cache_folder
from accel_bench.plugins.doors import find_entries
from accel_bench.report.formats import render, render_json
from accel_bench.result import Result
from accel_bench.runner.artifacts import scenario_text
from accel_bench.scenario.models import ScenarioFile
from accel_bench.store import schema
from accel_bench.store.database import Store
from accel_bench.store.sessions import SessionRecord
from accel_bench_share.anonymous_runs import anonymous
from accel_bench_share.archive import pack
from accel_bench_share.bundle_reader import (
    CONCLUSION,
    MACHINES,
    MANIFEST,
    REPORT,
    RUNS,
    SCENARIO,
    SESSIONS,
    SUMMARY,
    VERSIONS,
    Manifest,
    checksum_of,
    identity_of,
    json_member,
    member_of,
    read_bundle,
)
from accel_bench_share.permissions import problem_of_scenario
from accel_bench_share.reproduction import facts, plugins_of
from accel_bench_share.stack_reproduction import summarize_results

PAGES = "accel_bench.pages"
"""Entry-point group of functions that return a session as an HTML page."""

MEASURER = "measurer"
"""Name of the file in the cache folder with random digits that identify this user."""

DIGITS = 16
"""Number of hex digits of a pseudonym."""


def bundle_sessions(store: Store, identifiers: Sequence[str], path: Path) -> Manifest:
    """Write a bundle with the sessions to which `identifiers` lead; return its manifest.

    The ids are of sessions, runs or experiments. Raises BundleError if the file exists or the
    sessions make no bundle, and StoreError for an unknown id.
    """
    if path.exists():
        raise BundleError(f"{path} is already there; nothing is overwritten, choose another name")
    if not path.absolute().parent.is_dir():
        raise BundleError(f"the folder {path.parent} is not there; make it, or name another file")
    sessions, results, _ = anonymous(*_collect(store, identifiers))
    scenario = scenario_of_session(sessions[-1])
    place = f"the scenario of the session {sessions[-1].id!r}"
    baseline = validate(ScenarioFile, scenario, lambda _: place, BundleError).baseline_name()
    if problem := problem_of_scenario(scenario, results):
        raise BundleError(f"the scenario of {sessions[-1].id!r} is not that of its runs: {problem}")
    summary = summarize_results(results, baseline)
    machines = {own.model_dump_json(): own for run in results if (own := run.machine)}
    versions = [facts(machine, plugins_of(results)) for machine in machines.values()]
    texts = {
        SCENARIO: scenario_text(scenario),
        CONCLUSION: render([summary], "markdown"),
        SUMMARY: render_json(summary),
        MACHINES: render_json(list(machines.values())),
        VERSIONS: render_json(versions),
        REPORT: _report(sessions[-1], results, summary),
    }
    return write_bundle(path, sessions, results, baseline, texts)


def _report(session: SessionRecord, results: Sequence[Result], summary: Summary) -> str:
    """Return the HTML page of a session, made by the first entry point of `accel_bench.pages`.

    accel-bench's own entry point comes first. Without any entry point, the plain comparison page is
    returned. Raises PluginError if the entry point fails or returns no text.
    """
    entry = next(iter(find_entries(PAGES, "page").values()), None)
    if entry is None:
        return render([summary], "html")
    function = entry.load()
    with entry.blamed():
        page = function(session.id, session.document, results)
    if not isinstance(page, str):
        raise entry.broken("what it returned is no HTML text")
    return page


def scenario_of_session(session: SessionRecord) -> dict[str, Any]:
    """Return the scenario file of a session as data, with stacks instead of its ladder.

    The first stack is the baseline if the file names no baseline, or a missing one.
    """
    written: dict[str, Any] = dict(session.document)["written"]  # type: ignore[assignment]
    scenario = {key: written[key] for key in written if key != "ladder"}
    if scenario.get("baseline") not in scenario.get("stacks", {}):
        scenario["baseline"] = next(iter(scenario.get("stacks", {})), None)
    return scenario


def _collect(store: Store, identifiers: Sequence[str]) -> tuple[list[SessionRecord], list[Result]]:
    """Return the sessions to which ids of sessions, runs or experiments lead, and all their runs.

    A session with `auto` rounds comes with its looks, the sessions that add rounds to it.
    """
    ids = list(dict.fromkeys(run.session for name in identifiers for run in store.find(name)))
    known = {session.id: session for session in store.sessions()}
    if lost := [session for session in ids if session not in known]:
        raise BundleError(f"the record of the session {lost[0]!r} is damaged or missing")
    named = [known[session] for session in ids]
    _check_scenarios(named)
    first_looks = {_first_look(session) for session in named}
    chosen = [session for session in known.values() if _first_look(session) in first_looks]
    sessions = sorted(chosen, key=lambda session: session.started_at)
    results = [run for session in sessions for run in _runs(store, session.id)]
    return sessions, results


def _runs(store: Store, session: str) -> list[Result]:
    """Return all runs of a session. Raises BundleError if a run is damaged."""
    runs = dict(store.each(schema.RUNS.c.session == session))
    if damaged := [run_id for run_id, result in runs.items() if result is None]:
        raise BundleError(f"the run {damaged[0]!r} is damaged, so that its session has a gap")
    return [result for result in runs.values() if result is not None]


def _check_scenarios(sessions: Sequence[SessionRecord]) -> None:
    """Raise BundleError if a session has no scenario, or if the sessions have different ones."""
    for session in sessions:
        if not isinstance(session.document.get("written"), dict):
            raise BundleError(
                f"the session {session.id!r} was imported and has no scenario; a bundle is made "
                "where the runs were measured"
            )
    if len({_compared(session) for session in sessions}) > 1:
        listed = ", ".join(f"{session.id} ({session.scenario})" for session in sessions)
        raise BundleError(
            f"these are sessions of different scenarios or repetitions: {listed}; name those that "
            "belong together"
        )


def _first_look(session: SessionRecord) -> str:
    """Return the id of the first session in a session's series of looks (interim analyses)."""
    return str(session.document.get("look_of") or session.id)


def _compared(session: SessionRecord) -> str:
    """Return a text that is equal for sessions that may be in the same bundle.

    These are sessions of one scenario, whatever its rounds, that reproduce the same bundle or none.
    """
    scenario: dict[str, Any] = dict(session.document)["scenario"]  # type: ignore[assignment]
    measure = {**scenario.get("measure", {}), "rounds": None}
    return canonical_json([scenario | {"measure": measure}, session.document.get("repeats")])


def write_bundle(
    path: Path,
    sessions: Sequence[SessionRecord],
    results: Sequence[Result],
    baseline: str,
    texts: Mapping[str, str],
) -> Manifest:
    """Write a bundle file, verify it, and return its manifest.

    Sessions and results must be anonymized. `texts` has the texts of the other members by name,
    such as the scenario's, and `baseline` is the name of the stack that others are compared with.
    """
    lines = [result.model_dump_json() for result in results]
    members = {name: text.encode() for name, text in texts.items()}
    members[SESSIONS] = json_member([session.model_dump(mode="json") for session in sessions])
    members[RUNS] = gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0)
    manifest = _manifest(sessions, baseline, members)
    members[MANIFEST] = json_member(manifest.model_dump(mode="json"))
    write_atomically(path, pack(members))
    try:
        read_bundle(path)  # what cannot be read again is no bundle
    except BundleError:
        path.unlink()
        raise
    return manifest


def _manifest(
    sessions: Sequence[SessionRecord], baseline: str, members: Mapping[str, bytes]
) -> Manifest:
    first = min(sessions, key=lambda session: session.started_at)
    repeats = str(first.document.get("repeats", ""))
    identity = identity_of(members[SESSIONS], gzip.decompress(members[RUNS]))
    unsigned = Manifest(
        written_by=__version__,
        scenario=first.scenario,
        started_at=first.started_at,
        baseline=baseline,
        sessions=tuple(session.id for session in sessions),
        repeats=repeats,
        measured_by=pseudonym(repeats or identity),
        members=tuple(member_of(name, members[name]) for name in sorted(members)),
        sha256="",
    )
    return unsigned.model_copy(update={"sha256": checksum_of(unsigned)})


def pseudonym(salt: str) -> str:
    """Return 16 hex digits that stand for this user on this machine, and differ for each `salt`.

    They cannot be computed from names. The text is empty if there is no cache folder.
    """
    try:
        own = _own_digits()
        parts = (own, socket.gethostname(), getpass.getuser(), salt)
    except (StoreError, OSError, KeyError, ValueError):
        return ""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


def _own_digits() -> str:
    """Return 64 random hex digits of this user, which the first call stores in the cache folder."""
    path = cache_folder() / MEASURER
    try:
        with path.open("x", encoding="utf8") as handle:
            handle.write(secrets.token_hex(32))
    except FileExistsError:
        pass
    return path.read_text(encoding="utf8")
