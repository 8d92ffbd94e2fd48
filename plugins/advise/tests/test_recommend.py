"""`accel-bench recommend` as a program: requests in, answers out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median

import pytest
from accel_bench_advise.recommend_request import simulators_at_once
from cli.program import Done, call, write_nulls
from recommendation_factory import LOSSES, experiment, in_turn, runs

from accel_bench.result import Result
from accel_bench.store.database import open_store
from accel_bench.store.sessions import SessionRecord

MODEL = ("--model", "tiny-llama-cpu")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with two stacks on an L4."""
    monkeypatch.setenv("ACCEL_BENCH_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with open_store(tmp_path / "results", write=True) as store:
        store.add_session(
            SessionRecord(id="monday", started_at="2026-01-01T00:00:00Z", scenario="unnamed")
        )
        for run in in_turn(runs(experiment("baseline")), runs(experiment("fast"), 1.25)):
            store.add(run)
    return tmp_path / "results"


def recommend(*arguments: str, code: int = 0) -> Done:
    """Call `recommend` without estimates, which must end with the code."""
    done = call("recommend", "--no-estimates", *arguments)
    assert done.code == code, done.err
    return done


def test_a_request_in_json_gives_what_the_options_give(results: Path, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text('{"model": "tiny-llama-cpu", "gpu": "l4", "tokens": 1e6}')
    from_file = recommend("--json", str(path), "--format", "json").out
    assert from_file == recommend(*MODEL, "--gpu", "l4", "--tokens", "1e6", "--format", "json").out
    document = json.loads(from_file)
    assert document["request"]["tokens"] == 1e6
    assert document["recommended"]["stack"] == "fast"
    assert len(document["recommended"]["evidence"]["run_ids"]) == 5
    assert document["certainty"] == "measured"
    limited = recommend(*MODEL, "--metric-below", "peak_memory_bytes=16GiB", "--format", "json")
    assert json.loads(limited.out)["request"]["at_most"] == {"peak_memory_bytes": 16 * 2**30}
    twice = recommend("--json", str(path), "--gpu", "t4", code=2)
    assert "the command line gives gpu too" in twice.err


@pytest.mark.parametrize("form", ["table", "csv", "markdown"])
def test_people_and_spreadsheets_read_the_same_rows(results: Path, form: str) -> None:
    out = recommend(*MODEL, "--format", form, "--tokens", "1e6").out
    assert "fast" in out and "runner-up" in out and "baseline" in out
    if form == "table":
        assert "Use fast on l4: 9,998 tokens/s, 1.250 [1.24" in " ".join(out.split())
        assert "not changed, and not compared with anything else: model.dtype=float32" in out


def test_a_family_is_answered_from_what_is_stored_of_its_models(results: Path) -> None:
    done = recommend("--family", "text-generation", "--format", "json")
    (row,) = json.loads(done.out)["rows"]
    assert (row["model"], row["mode"], row["device"]) == ("tiny-llama-cpu", "train", "l4")
    assert row["recommended"]["stack"] == "fast" and row["certainty"] == "measured"
    assert "use fast on l4" in recommend("--family", "text-generation").out
    nothing = recommend("--family", "vision", code=1).out
    assert "Not tested: nothing that is stored of vision models answers this." in nothing
    assert "Not tested" in recommend("--family", "vision", "--results", "nowhere", code=1).out


@pytest.mark.parametrize("asked", [("--family", "text-generation"), MODEL])
def test_a_database_that_cannot_be_read_is_no_empty_one(
    results: Path, asked: tuple[str, ...]
) -> None:
    (results / "results.sqlite").write_bytes(b"no database at all")
    done = recommend(*asked, code=2)
    assert "results.sqlite" in done.err and "Not tested" not in done.out


def test_as_many_models_are_simulated_at_once_as_cores_and_memory_hold() -> None:
    for gibibytes, expected in ((64, 8), (8, 5), (1, 1)):
        assert simulators_at_once(70, 16, gibibytes * 2**30) == expected
    assert (simulators_at_once(3, 16, 2**36), simulators_at_once(70, 2, 2**36)) == (3, 2)


def test_conditions_choose_the_evidence(results: Path) -> None:
    done = recommend(*MODEL, "--where", "stack = baseline", "--format", "json")
    assert json.loads(done.out)["recommended"]["stack"] == "baseline"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--gpu", "l4"], "--no-estimates: name the model too (--model NAME)"),
        ([], "name the model: --model NAME"),
        ([*MODEL, "--gpu", "h1000"], "'h1000' fits no device of the table"),
        ([*MODEL, "--deadline", "3"], "--deadline needs the size of the job"),
        ([*MODEL, "--deadline", "inf", "--tokens", "5"], "--deadline takes a finite number"),
        ([*MODEL, "--tokens", "nan"], "--tokens takes a finite number"),
        ([*MODEL, "--budget", "-3", "--tokens", "5"], "budget_usd"),
        ([*MODEL, "--json", "nowhere.json"], "nowhere.json"),
        ([*MODEL, "--where", "nothing = 5"], "nothing"),
        ([*MODEL, "--metric-below", "request_latency_p99"], "write METRIC=VALUE"),
        ([*MODEL, "--family", "vision"], "leave --model out, or name one model"),
        (["--family", "visions"], "did you mean 'vision'"),
        (["--family", "vision", "--mode", "sing"], "--mode sing: it is train or inference"),
        ([*MODEL, "--metric-below", "request_latency_p99=soon"], "write METRIC=VALUE"),
        ([*MODEL, "--metric-below", "peak_memory_bytes=16 bags"], "or peak_memory_bytes=16GiB"),
    ],
)
def test_bad_requests_name_the_culprit(results: Path, arguments: list[str], problem: str) -> None:
    assert problem in recommend(*arguments, code=2).err


def test_a_model_that_is_not_stored_cannot_be_told(results: Path) -> None:
    done = recommend("--model", "gpt2", code=1)
    assert "Not tested: nothing that is stored of gpt2 answers this." in done.out
    assert done.out.lower().count("not tested") == 1


def test_a_misspelt_model_is_named_with_the_nearest_of_the_catalog_and_of_stored_runs(
    results: Path,
) -> None:
    error = recommend("--model", "tiny-lama-cpu", code=2).err
    assert "no model of the catalog is called 'tiny-lama-cpu'" in error
    assert "did you mean 'tiny-llama-cpu'?" in error
    assert "runs are stored of tiny-llama-cpu" in error
    recommend("--model", "some/hub-model", code=1)  # may well exist, and nothing is stored of it


def test_the_next_command_is_planned_with_its_rounds_and_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_DIR", os.devnull)
    measure = "{warmup: 1, steps: 12, rounds: 1}"
    write_nulls(tmp_path, "my.yaml", measure=measure)
    assert call("run", "my.yaml", "-q", "--format", "json").code == 0
    with open_store(tmp_path / "accel_bench_results", write=False) as store:
        found, sessions = [learning(run) for run in store.results()], store.sessions()
    with open_store(tmp_path / "results", write=True) as store:
        for session in sessions:
            store.add_session(session)
        for run in found:
            store.add(run)
    arguments = ("--scenario", "my.yaml", "--results", "results", "--tokens", "1e6")
    (more,) = json.loads(recommend(*arguments, "--format", "json").out)["next_runs"]
    command = "accel-bench run my.yaml -q --only other --resume --rounds"
    assert more["command"].startswith(command)
    rounds = int(more["command"].rpartition(" ")[2])
    more_runs = 2 * (rounds - 1)
    assert f"; the command runs {rounds - 1} rounds, {more_runs} runs" in more["why"]
    # Both stacks are empty, and so one experiment.
    seconds = more_runs * median(run.seconds for run in found)
    assert more["minutes"] == pytest.approx(seconds / 60)
    write_nulls(tmp_path, "my.yaml", measure="{warmup: 1, steps: 11, rounds: 1}")
    (more,) = json.loads(recommend(*arguments, "--format", "json").out)["next_runs"]
    assert f"runs {rounds} rounds, {2 * rounds} runs: no stored round counts" in more["why"]
    (tmp_path / "other.yaml").write_text((tmp_path / "my.yaml").read_text())
    (tmp_path / "my.yaml").unlink()
    arguments = ("--scenario", "other.yaml", *arguments[2:])
    (more,) = json.loads(recommend(*arguments, "--format", "json").out)["next_runs"]
    assert "the command cannot be planned here: " in more["why"] and more["minutes"] is None


def learning(run: Result) -> Result:
    """A run of the null engine with falling losses in place of its random ones."""
    (rank,) = run.ranks
    assert rank.window is not None
    parts = {
        part: tuple(
            one.model_copy(update={"loss": LOSSES[one.step]}) for one in getattr(rank.window, part)
        )
        for part in ("warmup", "samples")
    }
    window = rank.window.model_copy(update=parts)
    return run.model_copy(update={"ranks": (rank.model_copy(update={"window": window}),)})


WORK = """\
name: small
model: {id: tiny-llama-cpu, dtype: bfloat16}
data: {use: synthetic, sequence_length: 64}
train: {micro_batch_size: 2}
"""


@pytest.mark.release
def test_the_model_is_that_of_the_scenario_and_what_is_read_is_said_at_once(
    tmp_path: Path,
) -> None:
    request = ["--scenario", "quickstart", "--gpu", "l4", "--results", str(tmp_path / "none")]
    done = call("recommend", *request, "--no-estimates", "--tokens", "1e6", "--format", "json")
    assert done.err.startswith("reading stored runs of tiny-llama-cpu, and estimating the rest ...")
    assert json.loads(done.out)["request"]["model"] == "tiny-llama-cpu"


def test_without_stored_runs_it_estimates_and_names_the_command(
    results: Path, tmp_path: Path
) -> None:
    work, lengths = tmp_path / "work.yaml", tmp_path / "lengths.txt"
    work.write_text(WORK)
    lengths.write_text("100\n" * 100)
    request = [*MODEL, "--scenario", str(work), "--format", "json"]
    done = call("recommend", *request, "--gpu", "t4", "--lengths", str(lengths))
    document = json.loads(done.out)
    # A T4 has no peak in bfloat16, so that no speed is known; memory is.
    assert (done.code, document["certainty"], document["offer"]) == (1, "not tested", None)
    done = call("recommend", *request, "--deadline", "1", "--tokens", "1e6")
    document = json.loads(done.out)
    assert (done.code, document["certainty"]) == (0, "estimated")
    kinds = {offer["device"]: offer["kind"] for offer in document["offers"]}
    assert kinds["l4"] == "measured" and kinds["h100-sxm"] == "estimated"
    taken = document["offer"]
    assert taken["within_deadline"] == "holds"
    priced = [one["usd"]["high"] for one in document["offers"] if one["usd"]]
    assert taken["usd"]["high"] == min(priced)
    (run,) = document["next_runs"]
    assert run["command"] == f"accel-bench run {work}"
    assert run["minutes"] is None  # nothing of it has run here
