"""How a data set is read follows from its first rows, in whatever file they stand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from accel_bench_data_profile.command import _guessed
from accel_bench_data_profile.fields import first_fields
from pyarrow import ipc, parquet

from accel_bench.errors import ScenarioError

MESSAGES = {"messages": [{"role": "user", "content": "a"}]}

ALPACA = {"instruction": "add", "input": "1 2", "output": "3"}


@pytest.mark.parametrize(
    ("row", "read"),
    [
        (MESSAGES, {"use": "instructions", "messages": "messages"}),
        ({"conversations": []}, {"use": "instructions", "messages": "conversations"}),
        (
            ALPACA,
            {"use": "instructions", "prompt": ["instruction", "input"], "answer": "output"},
        ),
        (
            {"instruction": "a", "context": "b", "response": "c"},
            {"use": "instructions", "prompt": ["instruction", "context"], "answer": "response"},
        ),
        (
            {"question": "a", "answer": "b"},
            {"use": "instructions", "prompt": "question", "answer": "answer"},
        ),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c"},
            {"use": "preferences", "prompt": "prompt"},
        ),
        ({"chosen": [], "rejected": [], "messages": []}, {"use": "preferences"}),
        ({"text": "a", "input": "b"}, {"use": "text"}),
    ],
)
def test_all_fields_of_a_prompt_are_read(row: dict[str, Any], read: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert _guessed(file) == read


def test_tables_and_folders_are_read_as_lines_are(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist([ALPACA])
    (tmp_path / "files").mkdir()
    parquet.write_table(table, tmp_path / "files" / "a.parquet")
    saved = tmp_path / "saved"
    (saved / "train").mkdir(parents=True)
    (saved / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with ipc.new_stream(str(saved / "train" / "data-00000.arrow"), table.schema) as stream:
        stream.write_table(table)
    for path in (tmp_path / "files" / "a.parquet", tmp_path / "files", saved):
        assert {*first_fields(path)} == {*ALPACA}, path
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    with pytest.raises(ScenarioError, match=r"broken\.parquet: not a readable table"):
        first_fields(tmp_path / "broken.parquet")


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + json.dumps(MESSAGES).encode(),
        b"\n  \n" + json.dumps(MESSAGES).encode(),
        json.dumps({"long": "x" * 3_000_000, **MESSAGES}).encode(),
        b'{"messages": "\xff\xfe"}',
    ],
)
def test_a_first_row_is_found_behind_marks_and_empty_lines(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content + b"\n")
    assert "messages" in first_fields(file)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"[1, 2]\n", b"{", b"[" * 100_000])
def test_a_file_without_a_row_has_no_fields(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    assert [*first_fields(file)] == []


def test_fields_of_later_rows_count_too(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    plain = {key: ALPACA[key] for key in ("instruction", "output")}
    file.write_text("".join(json.dumps(row) + "\n" for row in (plain, ALPACA, plain)))
    assert {*first_fields(file)} == {*ALPACA}
    with file.open("a") as lines:
        lines.write('{"messages": \n{"chosen": 1}\n')
    assert {*first_fields(file)} == {*ALPACA}
