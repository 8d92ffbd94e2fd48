"""Bundles are read as written, without secrets and names, or refused."""

from __future__ import annotations

import gzip
import json
import re
import socket
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from accel_bench_share import bundle_reader as module
from accel_bench_share.anonymous_runs import anonymous
from accel_bench_share.archive import pack, unpack
from accel_bench_share.bundle_reader import MANIFEST, RUNS, SESSIONS, read_bundle
from accel_bench_share.bundle_writer import PAGES, bundle_sessions
from repeated_sessions import SCENARIO, make_record, make_runs

from accel_bench.documents.canonical import digest
from accel_bench.errors import BundleError, PluginError
from accel_bench.plugins.doors import DoorEntry
from accel_bench.result import Node, Provenance
from accel_bench.scenario.uses import LauncherUse
from accel_bench.store.database import open_store

from .bundles import write

Members = dict[str, bytes]

SECRET = "sup3r-s3cret-value-of-a-token"

STRANGER = """\
def page(session, document, results):
    return f"<p>{len(results)} runs"


def none(session, document, results):
    return None


def stop(session, document, results):
    raise SystemExit("no more")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of fifteen runs."""
    return write(tmp_path_factory.mktemp("bundle"), make_runs())


def test_what_is_read_is_what_was_stored(made: Path) -> None:
    found = read_bundle(made)
    sessions, results, _ = anonymous([make_record()], make_runs())
    assert sorted(found.results, key=lambda run: run.run_id) == sorted(
        results, key=lambda run: run.run_id
    )
    assert [one.ranks for one in results] == [one.ranks for one in make_runs()]  # all samples
    assert list(found.sessions) == sessions
    assert (found.manifest.scenario, found.manifest.baseline) == ("peft", "lora")
    assert found.scenario == SCENARIO
    assert "**fast is 1.250 times as fast as lora" in found.conclusion


@pytest.mark.box
def test_it_holds_what_people_read(made: Path) -> None:
    members = unpack(made)
    assert sorted(members) == [
        *("conclusion.md", "machines.json", "manifest.json", "report.html", "runs.gz"),
        *("scenario.yaml", "sessions.json", "summary.json", "versions.json"),
    ]
    assert "fast is 1.250 times as fast as lora" in members["report.html"].decode()
    assert b"<svg" in members["report.html"]
    (versions,) = json.loads(members["versions.json"])
    assert versions["torch"] == "2.13.0"
    assert versions["accel-bench"] == "0.1.0"  # that of the plugins
    (machine,) = json.loads(members["machines.json"])
    assert (machine["processor"], machine["host"]) == ("a CPU", "HOST1")


def test_the_same_session_gives_the_same_bytes(made: Path, tmp_path: Path) -> None:
    assert write(tmp_path, make_runs()).read_bytes() == made.read_bytes()
    with open_store(tmp_path / "bundle.zip.results", write=False) as store:
        with pytest.raises(BundleError, match="already there; nothing is overwritten"):
            bundle_sessions(store, ["monday"], tmp_path / "bundle.zip")
        with pytest.raises(BundleError, match="nowhere is not there; make it"):
            bundle_sessions(store, ["monday"], tmp_path / "nowhere" / "bundle.zip")


def resealed(path: Path, change: Callable[[Members], None], folder: Path) -> Path:
    """A changed file with recomputed zip headers and checksums."""
    members = unpack(path)
    change(members)
    (folder / "changed.zip").write_bytes(pack(members))
    return folder / "changed.zip"


def signed(members: Members, **changes: Any) -> None:
    """Write a manifest that matches the members."""
    manifest = json.loads(members[MANIFEST])
    manifest["members"] = [
        module.member_of(name, members[name]).model_dump()
        for name in sorted(members)
        if name != MANIFEST
    ]
    manifest |= changes
    manifest["sha256"] = digest({k: v for k, v in manifest.items() if k != "sha256"}, 64)
    members[MANIFEST] = module.json_member(manifest)


def test_the_command_names_no_tracker() -> None:
    own = ("accel-bench", "run", "--set", "trackers=[{use: wandb, entity: blue-team}]")
    own += ("--set=trackers.0.entity=blue-team", "--set", "measure.rounds=5", "peft.yaml")
    record = make_record().model_copy(update={"command": own})
    ((session,), *_) = anonymous([record], make_runs())
    left = ("accel-bench", "run", "--set", "measure.rounds=5", "peft.yaml")
    assert session.command == left


def test_a_host_has_one_word_in_runs_and_in_texts_about_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "zeta-3")
    (run, *_) = make_runs()
    assert run.machine is not None
    there = run.machine.model_copy(update={"host": "alpha-7"})
    runs = [run.model_copy(update={"machine": there})]
    _, results, told = anonymous([], runs, ["only runs where host = alpha-7", "here: zeta-3"])
    assert {run.machine and run.machine.host for run in results} == {"HOST1"}
    assert told == ["only runs where host = HOST1", "here: HOST2"]


def test_a_member_that_no_bundle_has_is_refused(made: Path, tmp_path: Path) -> None:
    def add(members: Members) -> None:
        members["setup.py"] = b"import os"
        signed(members)

    def remove(members: Members) -> None:
        del members["scenario.yaml"]
        signed(members)

    with pytest.raises(BundleError, match=r"no bundle has the members 'setup\.py'"):
        read_bundle(resealed(made, add, tmp_path))
    with pytest.raises(BundleError, match=r"it has no scenario\.yaml"):
        read_bundle(resealed(made, remove, tmp_path))


def test_a_scenario_that_is_none_is_refused(made: Path, tmp_path: Path) -> None:
    def change(members: Members) -> None:
        members["scenario.yaml"] = b"stacks: [baseline]\n"
        signed(members)

    with pytest.raises(BundleError, match=r"changed\.zip: refused, scenario\.yaml\.stacks: "):
        read_bundle(resealed(made, change, tmp_path))


@pytest.mark.parametrize(
    "time", ["zzz<b>", "2026-13-05T08:00:00Z", "2026-01-05", "2026-01-06T08:00:00Z"]
)
def test_a_time_that_is_none_is_refused(made: Path, tmp_path: Path, time: str) -> None:
    def change(members: Members) -> None:
        if "06" not in time:
            sessions = json.loads(members[SESSIONS])
            sessions[0]["started_at"] = time
            members[SESSIONS] = module.json_member(sessions)
        signed(members, started_at=time)

    with pytest.raises(BundleError, match=r"no time like|must be in|none of its sessions started"):
        read_bundle(resealed(made, change, tmp_path))


@pytest.mark.parametrize("name", ["page", "none", "stop"])
def test_the_page_is_that_of_a_stranger_where_ours_is_absent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_stranger_s_pages.py").write_text(STRANGER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_stranger_s_pages", raising=False)
    entry = DoorEntry("page", name, EntryPoint(name, f"a_stranger_s_pages:{name}", PAGES))
    monkeypatch.setattr("accel_bench_share.bundle_writer.find_entries", lambda *_: {name: entry})
    if name == "page":
        page = unpack(write(tmp_path, make_runs()))["report.html"]
        assert page.decode() == f"<p>{len(make_runs())} runs"
        return
    reason = {"none": "what it returned is no HTML text", "stop": "SystemExit: no more"}[name]
    with pytest.raises(PluginError, match=f"the page '{name}' of .* is broken: {reason}"):
        write(tmp_path, make_runs())


@pytest.mark.box
def test_plots_change_no_identity(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench_report.page.page.plots_available", lambda: False)
    plain = write(tmp_path, make_runs())
    assert b"<svg" not in unpack(plain)["report.html"]
    one, other = read_bundle(made), read_bundle(plain)
    assert one.manifest.sha256 != other.manifest.sha256
    assert one.identity == other.identity
    assert read_bundle(write(tmp_path, make_runs(fast=0.7), "x.zip")).identity != one.identity


@pytest.mark.parametrize("name", ["conclusion.md", "runs.gz", "scenario.yaml", "summary.json"])
def test_a_changed_member_is_refused_by_its_name(made: Path, tmp_path: Path, name: str) -> None:
    """Also by one who packs the file again; `test_archive` flips each bit of a whole file."""

    def flip(members: Members) -> None:
        content = bytearray(members[name])
        content[len(content) // 2] ^= 1
        members[name] = bytes(content)

    with pytest.raises(BundleError, match=f"the member '{name}' does not fit its checksum"):
        read_bundle(resealed(made, flip, tmp_path))


@pytest.mark.parametrize("step", [17])
def test_flipped_bits_of_a_whole_bundle_are_refused(made: Path, tmp_path: Path, step: int) -> None:
    whole = made.read_bytes()
    path = tmp_path / "flipped.zip"
    for place in range(0, len(whole), max(1, len(whole) // 150)):
        changed = bytearray(whole)
        changed[place] ^= 1 << (place * step) % 8
        path.write_bytes(changed)
        with pytest.raises(BundleError, match=r"flipped\.zip"):
            read_bundle(path)


def test_a_manifest_that_was_changed_is_refused(made: Path, tmp_path: Path) -> None:
    def rename(members: Members) -> None:
        members[MANIFEST] = members[MANIFEST].replace(b'"peft"', b'"best"')

    def drop(members: Members) -> None:
        del members["machines.json"]

    def add(members: Members) -> None:
        members["more.json"] = b"{}"

    def lose(members: Members) -> None:
        del members[MANIFEST]

    for change, reason in (
        (rename, "the manifest does not fit its checksum"),
        (drop, "differ in the members machines.json"),
        (add, "differ in the members more.json"),
        (lose, "refused"),
    ):
        with pytest.raises(BundleError, match=reason):
            read_bundle(resealed(made, change, tmp_path))


def replaced_runs(text: Callable[[str], str]) -> Callable[[Members], None]:
    """Changed runs, with recomputed checksums."""

    def change(members: Members) -> None:
        runs = text(gzip.decompress(members[RUNS]).decode())
        members[RUNS] = gzip.compress(runs.encode(), mtime=0)
        signed(members)

    return change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace('"origin":"measured"', '"origin":"imported"', 1), "imported"),
        (lambda text: text + text.splitlines()[0] + "\n", "two of its runs have one id"),
        (lambda text: text.replace('"session":"monday"', '"session":"x"', 1), "none of its sess"),
        (lambda text: text.replace('"seconds":1.0', '"seconds":1e999', 1), "run 1 cannot be read"),
        (lambda text: text.replace('"seconds":1.0', '"secs":1.0', 1), "run 1 cannot be read"),
        (lambda text: "", "holds no run"),
        (lambda text: text + "x", "more behind its runs"),
        (lambda text: "[" * 100_000 + "\n", "run 1 cannot be read"),
    ],
)
def test_runs_that_are_none_are_refused_under_right_checksums(
    made: Path, tmp_path: Path, change: Callable[[str], str], reason: str
) -> None:
    with pytest.raises(BundleError, match=reason):
        read_bundle(resealed(made, replaced_runs(change), tmp_path))


def test_a_bomb_is_not_inflated(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(members: Members) -> None:
        members[RUNS] = gzip.compress(b"\n" * 30_000_000, mtime=0)
        signed(members)

    def one_line(members: Members) -> None:
        members[RUNS] = gzip.compress(b" " * 30_000_000, mtime=0)
        signed(members)

    def short(members: Members) -> None:
        members[RUNS] = members[RUNS][:-12]
        signed(members)

    monkeypatch.setattr(module, "MAXIMUM_RUNS_BYTES", 10_000_000)
    for bomb in (one_line, lines):
        with pytest.raises(BundleError, match="grows beyond"):
            read_bundle(resealed(made, bomb, tmp_path))
    with pytest.raises(BundleError, match="cut off"):
        read_bundle(resealed(made, short, tmp_path))


def test_sessions_that_are_not_those_of_the_runs_are_refused(made: Path, tmp_path: Path) -> None:
    def other(members: Members) -> None:
        members[SESSIONS] = members[SESSIONS].replace(b'"monday"', b'"sunday"')
        signed(members)

    with pytest.raises(BundleError, match="not those of the manifest"):
        read_bundle(resealed(made, other, tmp_path))


def test_no_secret_and_no_name_is_in_any_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("USER", "alice")
    here = socket.gethostname()
    first, *others = make_runs()
    node = Node(rank=0, name="node7.corp", address="10.20.30.40", cores=4, memory_bytes=1)
    planted = first.model_copy(
        update={
            "command": ("/home/alice/venv/bin/python", "--token", SECRET, f"{here}:/srv/data/x"),
            "reasons": (f"alice on bench-1 ({here}) read /mnt/private/corpus.txt with {SECRET}",),
            "log_tail": 'File "/home/bob/lib/x.py", hf_abcdefghijklmnop0123456789abcdefgh',
            "nodes": (node,),
        }
    )
    queued = {"use": "slurm", "partition": "gold-queue", "account": "blue-account"}
    scenario = planted.experiment.scenario
    scenario = scenario.model_copy(update={"launcher": LauncherUse.model_validate(queued)})
    experiment = planted.experiment.model_copy(update={"scenario": scenario})
    planted = planted.model_copy(update={"experiment": experiment})
    document = {
        "note": f"alice ran it on {here} from /home/alice/deep/folder",
        "job": "nightly-42",
        "scenario": SCENARIO
        | {"trackers": [{"use": "wandb", "entity": "blue-team"}], "launcher": queued},
        "written": SCENARIO | {"trackers": [{"use": "mlflow", "uri": "http://track.corp"}]},
    }
    path = write(tmp_path, [planted, *others], document=document)
    members = unpack(path)
    members[RUNS] = gzip.decompress(members[RUNS])
    names = (SECRET, "hf_abcdef", "alice", "bob", "bench-1", "node7", "10.20.30.40")
    names += ("trackers", "blue-team", "track.corp", "nightly-42", "gold-queue", "blue-account")
    folders = ("/home", "/mnt/private", "/srv/data", "deep")
    for name, content in members.items():
        assert not [word for word in (*names, *folders) if word.encode() in content], name
        assert not re.search(rf"(?<![A-Za-z0-9]){here}(?![A-Za-z0-9])", content.decode()), name
    run = next(run for run in read_bundle(path).results if run.run_id == first.run_id)
    pattern = r"USER on HOST\d \(HOST\d\) read \[path\]/corpus\.txt with \[redacted\]"
    assert re.fullmatch(pattern, *run.reasons)


def test_what_was_imported_or_is_ambiguous_is_not_bundled(tmp_path: Path) -> None:
    imported = [
        run.model_copy(update={"provenance": Provenance(origin="exported", file="x.json")})
        for run in make_runs("tuesday")
    ]
    with open_store(tmp_path / "results", write=True) as store:
        store.add_session(make_record().model_copy(update={"document": {"imported": "exported"}}))
        store.add(make_runs()[0])
        other = {"scenario": {**SCENARIO, "name": "other", "measure": {}}}
        store.add_session(make_record("tuesday", **other))
        store.add(imported[0])
        with pytest.raises(BundleError, match="was imported and has no scenario"):
            bundle_sessions(store, ["monday"], tmp_path / "a.zip")
        with pytest.raises(BundleError, match="a bundle holds measured ones"):
            bundle_sessions(store, ["tuesday"], tmp_path / "b.zip")
    assert not [*tmp_path.glob("*.zip")]


def test_a_session_is_bundled_with_its_further_looks(tmp_path: Path) -> None:
    with open_store(tmp_path / "results", write=True) as store:
        for session, look in (("monday", ""), ("tuesday", "monday"), ("wednesday", "")):
            store.add_session(make_record(session, **({"look_of": look} if look else {})))
            for run in make_runs(session):
                store.add(run)
        bundle_sessions(store, ["monday"], tmp_path / "first.zip")
        bundle_sessions(store, ["tuesday"], tmp_path / "further.zip")
    for name in ("first.zip", "further.zip"):
        found = read_bundle(tmp_path / name)
        assert found.manifest.sessions == ("monday", "tuesday")
        assert {run.session for run in found.results} == {"monday", "tuesday"}


def test_a_huge_member_is_refused(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAXIMUM_PAYLOAD_BYTES", 1000)
    with pytest.raises(BundleError, match=r"is larger than 1000 bytes"):
        read_bundle(made)
