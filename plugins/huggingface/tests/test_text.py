"""Real text: found, read, tokenized once, packed or padded, and refused with a reason."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accel_bench_huggingface import text_impl
from accel_bench_huggingface.text import Text, TextOptions
from analysis_factory import make_experiment
from hypothesis import given, settings
from hypothesis import strategies as st
from imported_modules import imported
from pydantic import ValidationError
from tokenizers import Tokenizer

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.text_sources import path_files, read_documents, stdlib_files
from accel_bench.modeling.data.token_batches import TokenDataset
from accel_bench.testing import evidence_of

MakeRun = Callable[..., Run]

DOCUMENTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Grüße, 世界! 🙂\n\ttabs and\r\nline ends stay.\n",
    "A document that names <|endoftext|> and <|pad|> is text like any other.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 4,
]


def folder_of(root: Path, documents: list[str]) -> Path:
    """Write documents as text files whose names keep their order."""
    root.mkdir(parents=True, exist_ok=True)
    for index, text in enumerate(documents):
        (root / f"{index:03}.txt").write_bytes(text.encode())
    return root


def text_plugin(path: Path, **options: Any) -> Text:
    """The plugin on files of ours."""
    chosen = {"source": "path", "path": str(path), "vocab_size": 300, **options}
    return Text(TextOptions.model_validate(chosen))


def load(make_run: MakeRun, plugin: Text, sequence_length: int = 16) -> TokenDataset:
    """What the plugin loads for a scenario of that length."""
    run = make_run(data={"use": "text", "sequence_length": sequence_length})
    return plugin.load_data(run)


def tokenizer_of(dataset: TokenDataset) -> Tokenizer:
    """The tokenizer that made a dataset."""
    return Tokenizer.from_file(str(dataset.tokenizer_path))


def decoded(dataset: TokenDataset, *samples: int) -> str:
    """The text of samples, special tokens included."""
    ids = [int(token) for index in samples for token in dataset.sample(index)]
    return str(tokenizer_of(dataset).decode(ids, skip_special_tokens=False))


def documents_of(path: Path, field: str = "text", limit_bytes: int = 1_000_000) -> list[str]:
    """All documents below a path."""
    files = path_files(path, limit_bytes)
    return list(read_documents(files, field=field, limit_bytes=limit_bytes))


# Functions as documents.

SOURCE = """\
import os

def first(a):
    def inner():
        return a
    return inner
\x0c
class Second:
    @property
    def method(self):
        return "\x0c"

if os:
    async def third(): pass
"""


def test_functions_and_methods_of_python_files_are_documents_of_their_own(tmp_path: Path) -> None:
    folder_of(tmp_path, ["def not_python(): pass"])
    (tmp_path / "a.py").write_bytes(SOURCE.replace("\n", "\r\n").encode())
    (tmp_path / "broken.py").write_text("def broken(:\n")
    files = path_files(tmp_path, 10_000)
    found = list(read_documents(files, field="text", limit_bytes=10_000, functions=True))
    assert found == [
        "def not_python(): pass",
        "def first(a):\n    def inner():\n        return a\n    return inner",
        '    def method(self):\n        return "\x0c"',
        "    async def third(): pass",
        "def broken(:\n",
    ]


def test_functions_of_the_standard_library_differ_in_length(make_run: MakeRun) -> None:
    options = {"documents": "functions", "packing": False, "limit_bytes": 100_000}
    dataset = load(make_run, Text(TextOptions.model_validate(options)), 256)
    lengths = sorted(dataset.lengths.tolist())
    assert len(lengths) > 100
    assert lengths[0] < 32
    assert lengths[-1] == 256


# Packing and padding.


def test_packed_samples_read_one_after_another_are_the_documents(
    make_run: MakeRun, tmp_path: Path
) -> None:
    dataset = load(make_run, text_plugin(folder_of(tmp_path / "in", DOCUMENTS)), 8)
    packed = [token for index in range(len(dataset)) for token in dataset.sample(index).tolist()]
    rest = dataset.tokens[len(packed) :].tolist()
    assert set(dataset.lengths.tolist()) == {8}
    assert len(rest) < 8
    text = tokenizer_of(dataset).decode(packed + rest, skip_special_tokens=False)
    assert text == "".join(f"{text}<|endoftext|>" for text in DOCUMENTS)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
        .filter(str.strip)
        # A byte-order mark at the beginning of a file is not text.
        .filter(lambda text: not text.startswith("\ufeff")),
        min_size=1,
        max_size=6,
    )
)
def test_any_text_survives_tokenization(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str]
) -> None:
    source = folder_of(tmp_path_factory.mktemp("in"), documents)
    options = text_plugin(source, packing=False, vocab_size=280).options
    cached = tmp_path_factory.mktemp("cached")
    text_impl.fill(cached, options)
    dataset = text_impl.load(cached, options, 1000)
    found = [decoded(dataset, index) for index in range(len(dataset))]
    assert found == [f"{text}<|endoftext|>" for text in documents]


def test_without_packing_each_document_is_a_sample_that_ends_at_the_sequence_length(
    make_run: MakeRun, tmp_path: Path
) -> None:
    plugin = text_plugin(folder_of(tmp_path / "in", DOCUMENTS), packing=False)
    whole = load(make_run, plugin, 1000)
    found = [decoded(whole, index) for index in range(len(whole))]
    assert found == [f"{text}<|endoftext|>" for text in DOCUMENTS]
    short = load(make_run, plugin, 10)
    assert short.lengths.tolist() == np.minimum(whole.lengths, 10).tolist()
    assert all(
        short.sample(index).tolist() == whole.sample(index)[:10].tolist() for index in range(4)
    )


def test_padding_longest_makes_smaller_batches_with_the_same_text(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "in", ["ab", "abcd", "abc", "a b c d e"])
    real, processed = {}, {}
    for padding in ("longest", "max_length"):
        run = make_run(data={"use": "text", "sequence_length": 64}, train={"micro_batch_size": 2})
        plugin = text_plugin(folder, packing=False, padding=padding)
        run.dataset = plugin.load_data(run)
        found = list(islice(plugin.build_batches(run), 2))
        assert all("attention_mask" in batch.inputs for batch in found)
        real[padding] = [batch.tokens.real for batch in found]
        processed[padding] = sum(batch.tokens.processed for batch in found)
    assert real["longest"] == real["max_length"]
    assert processed["longest"] < processed["max_length"] == 4 * 64


def test_a_special_token_named_in_a_document_is_not_one(make_run: MakeRun, tmp_path: Path) -> None:
    dataset = load(make_run, text_plugin(folder_of(tmp_path / "in", DOCUMENTS)))
    end = tokenizer_of(dataset).token_to_id("<|endoftext|>")
    assert int((dataset.tokens == end).sum()) == len(DOCUMENTS)
    assert not (dataset.tokens == dataset.pad_token_id).any()


# The cache.


def test_text_is_tokenized_once_for_all_runs_lengths_and_ways_of_packing(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills = []
    real_fill = text_impl.fill

    def counted(folder: Path, options: TextOptions) -> None:
        fills.append(options)
        real_fill(folder, options)

    monkeypatch.setattr(text_impl, "fill", counted)
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    text_plugin(folder).prepare_experiment(make_run(data={"use": "text"}))
    load(make_run, text_plugin(folder), 8)
    load(make_run, text_plugin(folder), 16)
    load(make_run, text_plugin(folder, packing=False))
    assert len(fills) == 1
    load(make_run, text_plugin(folder, vocab_size=290))
    (folder / "000.txt").write_text("other text")
    load(make_run, text_plugin(folder))
    assert len(fills) == 3


def test_tokenizing_does_not_wait_for_torch() -> None:
    program = "from accel_bench_huggingface import text_impl"
    assert imported(program, {"torch", "transformers"}) == set()


def test_training_a_tokenizer_twice_gives_the_same_tokens(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    once = load(make_run, text_plugin(folder))
    run = make_run(data={"use": "text", "sequence_length": 16})
    run.cache_folder = tmp_path / "another cache"
    again = text_plugin(folder).load_data(run)
    assert again.tokenizer_path != once.tokenizer_path
    assert again.fingerprint == once.fingerprint
    assert again.tokens.tolist() == once.tokens.tolist()


def test_a_failed_fill_leaves_nothing_behind(make_run: MakeRun, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", ["  \n"])
    run = make_run(data={"use": "text"})
    with pytest.raises(ScenarioError, match="no text in the first"):
        text_plugin(folder).load_data(run)
    assert not [path for path in (run.cache_folder / "text").iterdir() if path.is_dir()]


# Tokenizers.


def test_a_finished_tokenizer_is_used_as_it_is(make_run: MakeRun, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    trained = load(make_run, text_plugin(folder))
    given_one = load(
        make_run, text_plugin(folder, tokenizer=str(trained.tokenizer_path), vocab_size=5000)
    )
    assert given_one.tokens.tolist() == trained.tokens.tolist()
    assert given_one.vocab_size == trained.vocab_size
    assert given_one.pad_token_id == tokenizer_of(trained).token_to_id("<|pad|>")


def test_an_unknown_end_of_text_token_is_refused_with_the_known_ones(
    make_run: MakeRun, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    path = str(load(make_run, text_plugin(folder)).tokenizer_path)
    with pytest.raises(ScenarioError, match=r"'</s>' is not a token.*<\|endoftext\|>, <\|pad\|>"):
        load(make_run, text_plugin(folder, tokenizer=path, end_of_text="</s>"))


def test_a_broken_tokenizer_file_is_refused_by_name(make_run: MakeRun, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text('{"version": "1.0"')
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    with pytest.raises(ScenarioError, match=r"tokenizer\.json: not a tokenizer\.json"):
        load(make_run, text_plugin(folder, tokenizer=str(broken)))


def test_the_vocabulary_covers_every_token(make_run: MakeRun, tmp_path: Path) -> None:
    dataset = load(make_run, text_plugin(folder_of(tmp_path / "in", DOCUMENTS)))
    assert int(dataset.tokens.max()) < dataset.vocab_size <= 300
    assert dataset.pad_token_id < dataset.vocab_size


# Sources.


def test_a_folder_is_read_by_name_without_hidden_and_foreign_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.md", "a/m.py", ".git/config.txt", "a/.hidden.txt", "c.bin"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert documents_of(tmp_path) == ["a/m.py", "a/z.md", "b.txt"]
    assert documents_of(tmp_path / "b.txt") == ["b.txt"]


def test_lines_of_json_are_documents_and_blank_ones_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(
        b'{"body": "one\\ntwo", "n": 1}\r\n\r\n{"body": ""}\n{"body": null}\n{"body": "three"}'
    )
    assert documents_of(path, "body") == ["one\ntwo", "three"]


def test_rows_of_parquet_are_documents(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = importlib.import_module("pyarrow.parquet")
    path = tmp_path / "some.parquet"
    columns = {"n": [1, 2, 3], "body": ["one", None, "three"]}
    parquet.write_table(pyarrow.table(columns), path)
    assert documents_of(path, "body") == ["one", "three"]
    with pytest.raises(ScenarioError, match="no column 'text'; columns: n, body"):
        documents_of(path)
    with pytest.raises(ScenarioError, match="row 1: 'n' is int, expected text"):
        documents_of(path, "n")
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ScenarioError, match=r"some\.parquet: not a readable parquet file"):
        documents_of(path, "body")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", r":2: not a JSON object"),
        ('["text"]', r":2: not a JSON object; a line looks like"),
        ('{"body": "x"}', r":2: no key 'text'; keys: body; set data\.field"),
        ('{"text": 3}', r":2: 'text' is int, expected text"),
        ('{"text": "\\ud800"}', r":2: 'text' holds half of a surrogate pair"),
        ("[" * 100_000, r":2: not a JSON object"),
    ],
)
def test_a_malformed_line_is_refused_with_file_and_line(
    tmp_path: Path, line: str, problem: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(ScenarioError, match=r"bad\.jsonl" + problem):
        documents_of(path)


def test_bytes_that_are_no_text_are_refused_or_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"fine\n\xff\xfe")
    (tmp_path / "b.txt").write_bytes(b"good")
    with pytest.raises(ScenarioError, match=r"a\.txt:2: not UTF-8 text \(byte 5\)"):
        documents_of(tmp_path)
    files = path_files(tmp_path, 1000)
    kept = read_documents(files, field="text", limit_bytes=1000, skip_undecodable=True)
    assert list(kept) == ["good"]


@settings(max_examples=30, deadline=None)
@given(limit=st.integers(1, 60))
def test_the_limit_cuts_text_between_characters(
    limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    texts = ["äöü" * 3, "plain text", "🙂🙂🙂"]
    folder = folder_of(tmp_path_factory.mktemp("limit"), texts)
    found = "".join(documents_of(folder, limit_bytes=limit))
    assert "".join(texts).startswith(found)
    size = min(limit, len("".join(texts).encode()))
    assert size - 6 < len(found.encode()) <= limit


def test_a_line_that_the_limit_cuts_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    assert documents_of(path, limit_bytes=20) == ["one"]


def test_no_more_documents_are_read_than_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    dataset = load(make_run, text_plugin(folder, packing=False, maximum_documents=3))
    assert len(dataset) == 3


def test_the_standard_library_is_there_and_is_python() -> None:
    files = stdlib_files(4_000_000)
    documents = list(read_documents(files, field="text", limit_bytes=4_000_000))
    assert len(documents) > 100
    assert sum(len(text.encode()) for text in documents) <= 4_000_000
    assert not {part for file in files for part in Path(file.name).parts[:-1]} & {
        "test",
        "idlelib",
        "site-packages",
        "__pycache__",
    }
    assert any("def " in text and "import " in text for text in documents)
    assert [file.name for file in files] == sorted(file.name for file in files)


# What the plugin says before, and after, a run.


def test_the_fingerprint_follows_names_content_and_limit(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", ["first", "second"])

    def fingerprint(**options: Any) -> str | None:
        return text_plugin(folder, **options).fingerprint(make_experiment())

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    (folder / "000.txt").write_text("First")
    seen.append(fingerprint())
    (folder / "000.txt").rename(folder / "0.txt")
    seen += [fingerprint(), fingerprint(limit_bytes=5)]
    assert len(set(seen)) == 4
    (folder / "001.txt").write_text("beyond the limit")
    assert fingerprint(limit_bytes=5) == seen[-1]


def test_the_fingerprint_follows_a_finished_tokenizer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "in", DOCUMENTS)
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text("{}")
    plugin = text_plugin(folder, tokenizer=str(tokenizer))
    before = plugin.fingerprint(make_experiment())
    tokenizer.write_text("{ }")
    assert before != plugin.fingerprint(make_experiment())


def test_reasons_say_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reasons(path: Path, **options: Any) -> str:
        try:
            return "; ".join(text_plugin(path, **options).check_scenario(make_experiment()))
        except ScenarioError as error:
            return str(error)

    folder = folder_of(tmp_path / "in", DOCUMENTS)
    assert reasons(folder) == ""
    assert "does not exist" in reasons(tmp_path / "nowhere")
    (tmp_path / "in.docx").touch()
    assert "holds nothing that can be read; known are .jsonl" in reasons(tmp_path / "in.docx")
    (tmp_path / "empty").mkdir()
    assert "holds nothing" in reasons(tmp_path / "empty")
    assert "is no file" in reasons(folder, tokenizer=str(tmp_path / "no.json"))
    with pytest.raises(ScenarioError, match="does not exist"):
        text_plugin(tmp_path / "nowhere").fingerprint(make_experiment())
    (folder / "z.parquet").touch()
    monkeypatch.setattr(text_sources, "find_spec", lambda name: None)
    assert "accel-bench[parquet]" in reasons(folder)


def test_options_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match="source: path needs `path`"):
        TextOptions(source="path")
    with pytest.raises(ValidationError, match="only read with `source: path`"):
        TextOptions(path="some.txt")


def test_evidence_counts_what_was_read(make_run: MakeRun, tmp_path: Path) -> None:
    plugin = text_plugin(folder_of(tmp_path / "in", DOCUMENTS))
    run = make_run(data={"use": "text", "sequence_length": 8})
    dataset = plugin.load_data(run)
    evidence = evidence_of(run)
    assert evidence["documents"] == 4
    assert evidence["characters"] == sum(map(len, DOCUMENTS))
    assert evidence["tokens"] == len(dataset.tokens) - 4
    assert evidence["samples"] == len(dataset)
    assert evidence["characters_per_token"] == evidence["characters"] / evidence["tokens"]
    assert json.loads(json.dumps(evidence)) == evidence


@pytest.mark.parametrize(
    ("options", "limited"),
    [({}, False), ({"limit_bytes": 10}, True), ({"maximum_documents": 1}, False)],
)
def test_evidence_says_whether_the_limit_ended_the_reading(
    options: dict[str, int], limited: bool, make_run: MakeRun, tmp_path: Path
) -> None:
    plugin = text_plugin(folder_of(tmp_path / "in", DOCUMENTS), **options)
    run = make_run(data={"use": "text", "sequence_length": 4})
    plugin.load_data(run)
    assert evidence_of(run)["limited"] is limited


def test_too_little_text_says_what_to_raise(make_run: MakeRun, tmp_path: Path) -> None:
    plugin = text_plugin(folder_of(tmp_path / "in", ["short"]))
    run = make_run(data={"use": "text", "sequence_length": 64})
    run.dataset = plugin.load_data(run)
    with pytest.raises(ScenarioError, match=r"0 samples of 64 tokens.*raise data\.limit_bytes"):
        plugin.build_batches(run)
