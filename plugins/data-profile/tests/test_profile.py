"""`data profile`: no text comes back, and a scenario takes the file as its data."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from accel_bench_data_profile.histogram import read_histogram
from cli.program import call

pytestmark = pytest.mark.box

CANARIES = ("xylophone", "quokka", "7f3a9c", "zürich")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a data set and its profile, and what the command printed."""
    folder = tmp_path_factory.mktemp("profiled")
    draw = random.Random(0)
    rows = []
    for _ in range(150):
        words = [draw.choice(CANARIES) for _ in range(draw.randrange(2, 60))]
        answer = {"role": "assistant", "content": " ".join(words)}
        rows.append({"messages": [{"role": "user", "content": "xylophone?"}, answer]})
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("data", "profile", "chats.jsonl", "--tokenizer", "train", "-o", "lengths.json")
    done = call(*command, folder=folder)
    assert done.code == 0, done.err
    return folder, done.out + done.err


def test_numbers_alone_come_back(profiled: tuple[Path, str]) -> None:
    folder, printed = profiled
    text = (folder / "lengths.json").read_text()
    document = json.loads(text)
    assert document.keys() == {"schema_version", "unit", "samples", "tokens", "bins"}
    assert all(type(one) is int for row in document["bins"] for one in row)
    assert document["unit"] == "tokens" and document["samples"] == 150
    for canary in CANARIES:
        assert canary not in text.lower() and canary not in printed.lower()


def test_a_scenario_takes_the_profile_as_its_data(profiled: tuple[Path, str]) -> None:
    folder, _ = profiled
    data = "data={use: length-profile, path: lengths.json, sequence_length: 512, vocab_size: 64}"
    small = ("--set", "measure.steps=2", "--set", "measure.rounds=1", "--set", "measure.warmup=1")
    done = call("run", "quickstart", "--only", "baseline", "--set", data, *small,
                "--format", "json", folder=folder)  # fmt: skip
    assert done.code == 0, done.err
    (row,) = json.loads(done.out)["experiments"]
    evidence = row["evidence"]["length-profile"]
    histogram = read_histogram(folder / "lengths.json")
    assert evidence["samples"] == histogram.samples
    assert evidence["tokens"] == histogram.tokens
    assert evidence["constant_length"] is False


def test_another_profile_is_another_experiment(profiled: tuple[Path, str]) -> None:
    folder, _ = profiled
    other = json.loads((folder / "lengths.json").read_text())
    other["bins"][0][1] += 1
    other["bins"][0][2] += other["bins"][0][0]
    other["samples"] += 1
    other["tokens"] += other["bins"][0][0]
    (folder / "other.json").write_text(json.dumps(other))
    plans = [
        json.loads(call("run", "quickstart", "--only", "baseline", "--dry-run", "--format", "json",
                        "--set", f"data={{use: length-profile, path: {name}}}", folder=folder).out)
        for name in ("lengths.json", "other.json")
    ]  # fmt: skip
    ids = {str(plan).partition("experiment_id")[2][:20] for plan in plans}
    assert len(ids) == 2


def test_what_was_read_is_said_and_an_output_without_a_folder_is_refused(
    profiled: tuple[Path, str],
) -> None:
    folder, printed = profiled
    assert "read as instructions, messages: messages" in printed
    command = ("data", "profile", "chats.jsonl", "--tokenizer", "train", "-o", "gone/lengths.json")
    done = call(*command, folder=folder)
    assert done.code == 2 and "gone is no folder" in done.err


def test_an_empty_data_set_has_no_profile(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    command = ("data", "profile", "empty.jsonl", "--tokenizer", "train", "-o", "lengths.json")
    done = call(*command, folder=tmp_path)
    assert done.code and done.err.startswith("error: ") and "Traceback" not in done.err
    assert not (tmp_path / "lengths.json").exists()


def test_a_file_is_not_overwritten(profiled: tuple[Path, str]) -> None:
    folder, _ = profiled
    command = ("data", "profile", "chats.jsonl", "--tokenizer", "train", "-o", "lengths.json")
    done = call(*command, folder=folder)
    assert done.code == 2 and "already there" in done.err


def test_rows_with_messages_are_read_as_another_plugin_does(profiled: tuple[Path, str]) -> None:
    folder, _ = profiled
    command = ("data", "profile", "chats.jsonl", "--tokenizer", "train", "-o", "text.json")
    done = call(*command, "--set", "data.use=text", folder=folder)
    assert "no key 'text'" in done.err and "unknown key" not in done.err


@pytest.mark.parametrize("said", [(), ("--set", "data.use=preferences")])
def test_pairs_of_answers_are_read_as_preferences(said: tuple[str, ...], tmp_path: Path) -> None:
    pair = {"prompt": "a b", "chosen": "quite a long answer", "rejected": "no"}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 3)
    command = ("data", "profile", "pairs.jsonl", "--tokenizer", "train", "-o", "lengths.json")
    done = call(*command, *said, folder=tmp_path)
    assert done.code == 0, done.err
    assert "read as preferences, prompt: prompt" in done.err
    assert read_histogram(tmp_path / "lengths.json").samples == 3


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows of which some have no `input`, and some no answer."""
    folder = tmp_path_factory.mktemp("ragged")
    rows: list[dict[str, str]] = [{"instruction": "add these", "output": "3"} for _ in range(20)]
    for row in rows[5:]:
        row["input"] = "1 2 3 4 5 6 7 8 9"
    for row in rows[::7]:
        row["output"] = ""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_field_that_the_first_row_lacks_is_read_and_rows_without_an_answer_are_counted(
    ragged: Path,
) -> None:
    command = ("data", "profile", "rows.jsonl", "--tokenizer", "train", "-o", "lengths.json")
    done = call(*command, folder=ragged)
    assert done.code == 0, done.err
    assert "prompt: ['instruction', 'input'], answer: output" in done.err
    assert "left out: 3 rows without an answer" in done.err and "limited" not in done.err
    histogram = read_histogram(ragged / "lengths.json")
    assert histogram.samples == 17 and len(histogram.bins) == 2


@pytest.mark.parametrize("how", [(), ("--set", "data.use=text", "--set", "data.field=instruction")])
def test_a_limit_that_ended_the_reading_is_said(how: tuple[str, ...], ragged: Path) -> None:
    output = f"limited{len(how)}.json"
    command = ("data", "profile", "rows.jsonl", "--tokenizer", "train", "-o", output)
    done = call(*command, *how, "--set", "data.limit_bytes=600", folder=ragged)
    assert done.code == 0, done.err
    assert "limited: only what data.limit_bytes 600 lets be read; the data go on" in done.err
