"""`bundle`, `reproduce` and `site`, on real runs of a scenario without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from accel_bench_share.anonymous_runs import anonymous
from accel_bench_share.archive import unpack
from accel_bench_share.bundle_reader import read_bundle
from accel_bench_share.bundle_writer import write_bundle
from accel_bench_share.permissions import naming_the_bundle
from analysis_factory import make_rank
from cli.program import call, write_nulls
from repeated_sessions import make_record, make_runs

from accel_bench.errors import BundleError
from accel_bench.store.database import open_store

from .bundles import write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a measured scenario, and a bundle of it."""
    folder = tmp_path_factory.mktemp("first")
    scenario = write_nulls(folder, measure="{warmup: 1, steps: 3, rounds: 2}")
    assert call("run", str(scenario), "-q", folder=folder).code == 0
    (session,) = sessions(folder)
    made = call("bundle", "new", session[:12], "-o", "first.zip", folder=folder)
    assert (made.code, made.err) == (0, "")
    digest = read_bundle(folder / "first.zip").manifest.sha256
    assert made.out.endswith(f"1 session of nulls, {_size(folder)} bytes, sha256 {digest}\n")
    return folder


def _size(folder: Path) -> str:
    return f"{(folder / 'first.zip').stat().st_size:,}"


def sessions(folder: Path) -> list[str]:
    with open_store(folder / "accel_bench_results", write=False) as store:
        return [session.id for session in store.sessions()]


@pytest.mark.box
def test_a_bundle_is_run_again_compared_stored_and_counted(folder: Path) -> None:
    first = read_bundle(folder / "first.zip").manifest
    identity = read_bundle(folder / "first.zip").identity
    done = call("reproduce", "first.zip", "-q", "--rounds", "1", folder=folder)
    assert done.code == 5
    assert "one round has no interval; --rounds 5 measures more" in " ".join(done.out.split())
    assert f"verified, sha256 {first.sha256}" in done.err
    assert "versions and hardware are the bundle's" in done.err

    # Of what this store holds, rounds that repeat the bundle count, and its own do not.
    done = call("reproduce", "first.zip", "-q", "--resume", "--format", "json", folder=folder)
    found = json.loads(done.out)
    assert done.code == {"holds": 0, "does not hold": 4, "inconclusive": 5}[found["verdict"]]
    assert (found["sha256"], found["same_device"]) == (first.sha256, True)
    assert [row["status_here"] for row in found["stacks"]] == ["ok", "ok"]
    assert all(row["change"]["low"] for row in found["stacks"] if not row["is_baseline"])

    own, *again = sessions(folder)
    with open_store(folder / "accel_bench_results", write=False) as store:
        runs = [run for one in again for run in store.results(session=one)]
        assert [one.document.get("repeats") for one in store.sessions()] == [
            *(None, identity, identity)
        ]
    assert sorted((run.round, run.experiment.stack.name) for run in runs) == [
        *((0, "baseline"), (0, "other"), (1, "baseline"), (1, "other"))
    ]
    origins = {(run.provenance.origin, run.provenance.file, run.provenance.sha256) for run in runs}
    assert origins == {("measured", "first.zip", identity)}
    shown = call("results", "show", again[0], folder=folder).out
    assert f"file: first.zip\n  sha256: {identity}" in shown

    # The report of the session says how often it was repeated on this machine: once, resumed.
    text = call("report", own, "--markdown", "-", folder=folder).out
    machines = {"holds": "1 machine"}.get(found["verdict"], "0 of 1 machine")
    assert f"measured here, reproduced on {machines}" in text

    # The bundle of the repetition says what it repeats, and the page counts it.
    assert call("bundle", "new", *again, "-o", "again.zip", folder=folder).code == 0
    assert read_bundle(folder / "again.zip").manifest.repeats == identity
    for _ in range(2):  # the page replaces an older one
        done = call("bundle", "site", ".", folder=folder)
        assert (done.code, done.out) == (0, "index.html: 2 bundles, 0 refused\n")
    page = (folder / "index.html").read_text()
    assert f"1 time: 1 {found['verdict']} by its author" in page
    assert "repeats first.zip" in page

    # One experiment's id leads to the bundle's own runs and to those that repeat it.
    done = call("bundle", "new", runs[0].experiment.id, "-o", "mixed.zip", folder=folder)
    assert (done.code, "different scenarios or repetitions" in done.err) == (2, True)
    assert own in done.err


def test_a_dry_run_starts_nothing(folder: Path) -> None:
    before = sessions(folder)
    done = call("reproduce", "first.zip", "--dry-run", folder=folder)
    assert done.code == 0
    assert "nulls: 4 runs" in done.out
    assert sessions(folder) == before


def test_a_tampered_bundle_is_neither_run_nor_shown(folder: Path, tmp_path: Path) -> None:
    whole = bytearray((folder / "first.zip").read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / "bad<b>.zip").write_bytes(whole)
    (tmp_path / "link.zip").symlink_to(folder / "first.zip")
    (tmp_path / "copy.zip").write_bytes((folder / "first.zip").read_bytes())
    (tmp_path / "same.zip").write_bytes((folder / "first.zip").read_bytes())
    done = call("reproduce", "bad<b>.zip", folder=tmp_path)
    assert done.code == 2
    assert "error: bad<b>.zip: refused, " in done.err
    assert not (tmp_path / "accel_bench_results").exists()
    done = call("bundle", "site", ".", "-o", "page.html", folder=tmp_path)
    assert (done.code, done.out) == (1, "page.html: 1 bundle, 3 refused\n")
    assert "link.zip: it is a link or no plain file" in done.err
    assert "same.zip: the same runs as copy.zip" in done.err
    page = (tmp_path / "page.html").read_text()
    assert "<strong>bad&lt;b&gt;.zip</strong>" in page
    assert "3 files refused" in page
    done = call("bundle", "check", "bad<b>.zip", "copy.zip", folder=tmp_path)
    assert done.code == 1 and "error" not in done.out
    sha256 = read_bundle(tmp_path / "copy.zip").manifest.sha256
    assert done.out == f"copy.zip: ok, sha256 {sha256}\n"
    assert done.err.startswith("bad<b>.zip: refused, ")
    listed = call("bundle", "list", "--format", "json", folder=tmp_path)
    assert listed.err.startswith("bad<b>.zip: refused, ")
    rows = [(row["file"], row["scenario"]) for row in json.loads(listed.out)]
    assert rows == [(name, "nulls") for name in ("copy.zip", "link.zip", "same.zip")]
    assert call("bundle", "show", "bad<b>.zip", folder=tmp_path).code == 2


def test_what_a_bundle_holds_is_shown_with_its_conclusion(folder: Path) -> None:
    shown = call("bundle", "show", "first.zip", folder=folder).out
    made = read_bundle(folder / "first.zip")
    assert made.manifest.sha256 in shown and made.conclusion.splitlines()[0] in shown
    document = json.loads(
        call("bundle", "show", "first.zip", "--format", "json", folder=folder).out
    )
    assert document["conclusion"] == made.conclusion
    assert document["sessions"] == [*made.manifest.sessions]


def test_without_a_bundle_there_is_no_page(tmp_path: Path) -> None:
    done = call("bundle", "site", ".", folder=tmp_path)
    assert done.code == 2
    assert "holds no bundle (*.zip); `accel-bench bundle new` makes some" in done.err
    assert "is no folder" in call("bundle", "site", "absent", folder=tmp_path).err
    assert not (tmp_path / "index.html").exists()


def test_an_unknown_id_and_an_existing_file_are_named(folder: Path) -> None:
    done = call("bundle", "new", "nothing", "-o", "x.zip", folder=folder)
    assert (done.code, "begins with 'nothing'" in done.err) == (2, True)
    done = call("bundle", "new", "2", "-o", "first.zip", folder=folder)
    assert (done.code, "first.zip is already there" in done.err) == (2, True)


def test_a_repetition_by_a_copy_counts_once(tmp_path: Path) -> None:
    first = write(tmp_path, make_runs(), "first.zip")
    repeated = {"repeats": read_bundle(first).identity}
    for name in ("again.zip", "copy.zip"):
        note = {"note": name}  # other bytes, the same session
        write(tmp_path, make_runs("tuesday"), name, repeated | note)
    assert call("bundle", "site", ".", folder=tmp_path).code == 0
    page = (tmp_path / "index.html").read_text()
    assert page.count("1 time: 1 reproduced") == 2  # fast and slow
    assert "2 times" not in page


def test_who_repeats_a_bundle_twice_on_a_machine_counts_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(tmp_path, make_runs(), "first.zip")
    repeated = {"repeats": read_bundle(first).identity}
    write(tmp_path, make_runs("wednesday"), "own.zip", repeated)
    own = [read_bundle(tmp_path / name).manifest.measured_by for name in ("first.zip", "own.zip")]
    assert own[0] == own[1] != ""
    for place, sessions in (("there", ("tuesday", "thursday")), ("elsewhere", ("friday",))):
        monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / place))
        for session in sessions:
            # The second on one machine finds otherwise, and counts alone.
            runs = make_runs(session, fast=0.5 if session == "thursday" else 0.8)
            write(tmp_path, runs, f"{session}.zip", repeated)
    assert call("bundle", "site", ".", folder=tmp_path).code == 0
    page = (tmp_path / "index.html").read_text()
    assert "3 times: 1 not reproduced, 1 reproduced, 1 reproduced by its author" in page
    assert "3 times: 2 reproduced, 1 reproduced by its author" in page  # slow


def test_numbers_at_the_ends_of_what_a_run_may_hold_end_no_page(tmp_path: Path) -> None:
    """Each is within the limits of a stored run; together they are beyond those of a float."""
    wild = [
        run.model_copy(update={"ranks": (make_rank(step_seconds=(seconds, seconds)),)})
        for run, seconds in zip(make_runs()[:2], (1e-10, 1e90), strict=True)
    ]
    good = write(tmp_path, make_runs(), "good.zip")
    sessions, results, _ = anonymous([make_record()], wild)
    texts = {"scenario.yaml": unpack(good)["scenario.yaml"].decode()}
    write_bundle(tmp_path / "wild.zip", sessions, results, "lora", texts)
    done = call("bundle", "site", ".", folder=tmp_path)
    assert done.out == "index.html: 2 bundles, 0 refused\n"


def test_a_bundle_with_which_nothing_can_be_computed_is_refused_by_its_name() -> None:
    reason = "wild.zip: refused, nothing can be computed with it \\(OverflowError: math range error"
    with pytest.raises(BundleError, match=reason), naming_the_bundle("wild.zip"):
        math.exp(1e90)
