"""Instructions: rows of every kind are read, and only answers are supervised."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from accel_bench_huggingface.text import Text
from accel_bench_text_tasks.data import conversations_impl
from accel_bench_text_tasks.data.instructions import Instructions, InstructionsOptions
from analysis_factory import make_experiment
from pyarrow import parquet
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from accel_bench import Plugin, Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import IGNORED_LABEL, TokenDataset
from accel_bench.testing import evidence_of

MakeRun = Callable[..., Run]

PAIRS = [
    {"prompt": f"What is {n} and {n}?\n", "answer": f"It is {2 * n}, which is even."}
    for n in range(40)
]

CHATS = [
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": f"Hello number {n}"},
            {"role": "assistant", "content": f"Hi, {n}!"},
            {"role": "user", "content": "And now?"},
            {"role": "assistant", "content": "Now  we part. "},
        ]
    }
    for n in range(20)
]

MARKED = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A template that marks its answers, as in transformers."""

UNMARKED = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write rows in the form of the path's ending: JSON lines, Parquet, or a saved dataset."""
    table = pyarrow.Table.from_pylist(list(rows))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        path.mkdir(parents=True)
        name = "data-00000-of-00001.arrow"
        with pyarrow.OSFile(str(path / name), "wb") as sink:
            with pyarrow.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    return path


def plugin_of(path: Path | None, **options: Any) -> Instructions:
    """The plugin on given rows, or on the standard library."""
    source = {} if path is None else {"source": "path", "path": str(path)}
    return Instructions(
        InstructionsOptions.model_validate({"vocab_size": 400, **source, **options})
    )


def load(make_run: MakeRun, plugin: Instructions, sequence_length: int = 64) -> TokenDataset:
    """Load the plugin's dataset for a scenario of the given length."""
    return plugin.load_data(make_run(data={"sequence_length": sequence_length}))


def texts(dataset: TokenDataset, index: int) -> tuple[str, str]:
    """Text of a sample, and of its supervised tokens."""
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path))
    ids = dataset.sample(index).tolist()
    learned = [label for label in dataset.labels(index).tolist() if label != IGNORED_LABEL]
    return (
        str(tokenizer.decode(ids, skip_special_tokens=False)),
        str(tokenizer.decode(learned, skip_special_tokens=False)),
    )


# Rows.


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "saved"])
def test_rows_of_every_kind_become_the_same_samples(
    name: str, make_run: MakeRun, tmp_path: Path
) -> None:
    dataset = load(make_run, plugin_of(write_rows(tmp_path / name, PAIRS)))
    assert len(dataset) == 40
    for index in (0, 7, 39):
        prompt, answer = PAIRS[index]["prompt"], PAIRS[index]["answer"]
        whole, learned = texts(dataset, index)
        assert whole == f"{prompt}{answer}<|endoftext|>"
        assert learned == f"{answer}<|endoftext|>"


def test_a_row_may_lack_a_part_of_its_prompt_and_not_all(make_run: MakeRun, tmp_path: Path) -> None:
    rows = [dict(PAIRS[0]), {"context": "c", **PAIRS[1]}, dict(PAIRS[2])]
    plugin = plugin_of(write_rows(tmp_path / "rows.jsonl", rows), prompt=["prompt", "context"])
    dataset = load(make_run, plugin)
    found = [texts(dataset, index)[0] for index in range(3)]
    assert found[0] == f"{PAIRS[0]['prompt']}{PAIRS[0]['answer']}<|endoftext|>"
    assert found[1] == f"{PAIRS[1]['prompt']}\n\nc{PAIRS[1]['answer']}<|endoftext|>"
    for wrong in (["prompt", "contxt"], ["promt", "contxt"]):
        with pytest.raises(ScenarioError, match=r"no field '(contxt|promt)'"):
            load(make_run, plugin_of(tmp_path / "rows.jsonl", prompt=wrong))
    write_rows(tmp_path / "rows.jsonl", [*rows, {"answer": "b"}])
    with pytest.raises(ScenarioError, match=r"rows\.jsonl:4: no field 'prompt'"):
        load(make_run, plugin)


@pytest.mark.release
def test_what_datasets_has_written_is_read(make_run: MakeRun, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(PAIRS)
    chosen = whole.select(range(39, -1, -3))
    splits = datasets.DatasetDict({"train": whole, "test": whole.select(range(5))})
    whole.save_to_disk(str(tmp_path / "one"))
    whole.save_to_disk(str(tmp_path / "shards"), num_shards=3)
    chosen.save_to_disk(str(tmp_path / "chosen"))
    splits.save_to_disk(str(tmp_path / "splits"))
    whole.to_parquet(str(tmp_path / "rows.parquet"))
    for name in ("one", "shards", "splits", "rows.parquet"):
        dataset = load(make_run, plugin_of(tmp_path / name))
        assert [texts(dataset, n) for n in range(len(dataset))] == [
            (f"{row['prompt']}{row['answer']}<|endoftext|>", f"{row['answer']}<|endoftext|>")
            for row in PAIRS
        ]
    found = load(make_run, plugin_of(tmp_path / "chosen"))
    assert [texts(found, n)[0] for n in range(len(found))] == [
        f"{row['prompt']}{row['answer']}<|endoftext|>" for row in PAIRS[::-3]
    ]
    assert len(load(make_run, plugin_of(tmp_path / "splits", split="test"))) == 5


@pytest.mark.release
@pytest.mark.parametrize("form", ["list", "columns"])
def test_conversations_of_datasets_are_read(form: str, make_run: MakeRun, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    message = {"role": datasets.Value("string"), "content": datasets.Value("string")}
    kinds = {"list": datasets.List, "columns": datasets.Sequence}
    features = datasets.Features({"messages": kinds[form](message)})
    rows = CHATS if form == "list" else in_columns(CHATS)
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(tmp_path / "saved"))
    plain = write_rows(tmp_path / "rows.jsonl", CHATS)
    read, expected = (
        load(make_run, plugin_of(path, messages="messages"), 256)
        for path in (tmp_path / "saved", plain)
    )
    assert [texts(read, n) for n in range(20)] == [texts(expected, n) for n in range(20)]


def in_columns(chats: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Conversations as a list of roles beside one of contents."""
    return [
        {"messages": {key: [one[key] for one in row["messages"]] for key in ("role", "content")}}
        for row in chats
    ]


def test_messages_may_be_columns_of_roles_and_contents(make_run: MakeRun, tmp_path: Path) -> None:
    read, expected = (
        load(make_run, plugin_of(write_rows(tmp_path / name, rows), messages="messages"), 256)
        for name, rows in (("columns.parquet", in_columns(CHATS)), ("rows.jsonl", CHATS))
    )
    assert [texts(read, n) for n in range(20)] == [texts(expected, n) for n in range(20)]


def as_sharegpt(chats: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Conversations in ShareGPT's format."""
    speakers = {"user": "human", "assistant": "gpt", "system": "system"}
    return [
        {
            "id": str(number),
            "conversations": [
                {"from": speakers[one["role"]], "value": one["content"]} for one in row["messages"]
            ],
        }
        for number, row in enumerate(chats)
    ]


@pytest.mark.parametrize("form", ["rows.jsonl", "rows.parquet", "columns.parquet"])
def test_rows_of_sharegpt_are_the_same_conversations(
    form: str, make_run: MakeRun, tmp_path: Path
) -> None:
    rows = as_sharegpt(CHATS)
    if form == "columns.parquet":
        keys = ("from", "value")
        rows = [
            {"conversations": {key: [one[key] for one in row["conversations"]] for key in keys}}
            for row in rows
        ]
    path = write_rows(tmp_path / form, rows)
    read = load(make_run, plugin_of(path, messages="conversations"), 256)
    plain = write_rows(tmp_path / "plain.jsonl", CHATS)
    expected = load(make_run, plugin_of(plain, messages="messages"), 256)
    assert [texts(read, n) for n in range(20)] == [texts(expected, n) for n in range(20)]
    assert "Hi, 3!" in texts(read, 3)[1]


def test_a_split_of_a_saved_dataset_is_read_by_its_name(make_run: MakeRun, tmp_path: Path) -> None:
    write_rows(tmp_path / "all" / "train", PAIRS[:3])
    write_rows(tmp_path / "all" / "test", PAIRS[3:5])
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    found = {
        split: len(load(make_run, plugin_of(tmp_path / "all", split=split)))
        for split in ("train", "test")
    }
    assert found == {"train": 3, "test": 2}
    with pytest.raises(ScenarioError, match=r"no such split; did you mean 'train'\?; it has train"):
        list(plugin_of(tmp_path / "all", split="trian").check_scenario(make_experiment()))


def test_several_prompt_fields_are_joined_and_empty_ones_left_out(
    make_run: MakeRun, tmp_path: Path
) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 and 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hello"},
        {"instruction": "Say nothing.", "input": None, "output": ""},
    ]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    run = make_run(data={"sequence_length": 64})
    dataset = plugin_of(path, prompt=("instruction", "input"), answer="output").load_data(run)
    assert [texts(dataset, n)[0] for n in range(len(dataset))] == [
        "Add.\n\n1 and 23<|endoftext|>",
        "Greet.Hello<|endoftext|>",
    ]
    assert evidence_of(run)["empty"] == 1


def test_the_standard_library_gives_heads_of_functions_and_their_bodies(make_run: MakeRun) -> None:
    dataset = load(make_run, plugin_of(None, limit_bytes=30_000), 2048)
    assert len(dataset) > 20
    for index in range(len(dataset)):
        whole, learned = texts(dataset, index)
        head = whole.removesuffix(learned)
        assert head.lstrip().startswith(("def ", "async def "))
        assert head.endswith(('"', "'"))
        assert learned.startswith("\n")
        compile(whole.removesuffix("<|endoftext|>"), "sample", "exec")


# Templates.


def tokenizer_folder(root: Path, template: str | None = None) -> Path:
    """A tokenizer as transformers saves it, trained on the conversations."""
    saved = root / "tokenizer"
    backend = Tokenizer.from_str(_tokenizer_json())
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="[P]")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(str(saved))
    return saved


def _tokenizer_json() -> str:
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["</s>", "[P]", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=350,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["Hello number, we part now. And " * 20], trainer)
    return str(tokenizer.to_str())


@pytest.mark.parametrize("template", [MARKED, UNMARKED], ids=["marked", "unmarked"])
def test_a_tokenizer_s_template_gives_the_tokens_and_answers_that_transformers_gives(
    template: str, make_run: MakeRun, tmp_path: Path
) -> None:
    folder = tokenizer_folder(tmp_path, template)
    path = write_rows(tmp_path / "rows.parquet", CHATS)
    dataset = load(make_run, plugin_of(path, messages="messages", tokenizer=str(folder)), 128)
    theirs = PreTrainedTokenizerFast.from_pretrained(str(folder))
    assert len(dataset) == len(CHATS)
    for index, row in enumerate(CHATS):
        expected = theirs.apply_chat_template(
            row["messages"],
            chat_template=MARKED,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        assert dataset.sample(index).tolist() == expected["input_ids"]
        learned = (dataset.labels(index) != IGNORED_LABEL).astype(int).tolist()
        assert learned == expected["assistant_masks"]
    assert dataset.pad_token_id == theirs.convert_tokens_to_ids("</s>")


def test_a_tokenizer_with_code_of_its_own_is_refused_and_nobody_is_asked(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tokenizer_folder(tmp_path, MARKED)
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    config = folder / "tokenizer_config.json"
    found = json.loads(config.read_text())
    found |= {"auto_map": {"AutoTokenizer": [None, "own.Own"]}, "tokenizer_class": "Own"}
    config.write_text(json.dumps(found))
    monkeypatch.setattr("builtins.input", lambda text="": pytest.fail(f"asked: {text}"))
    plugin = plugin_of(path, messages="messages", tokenizer=str(folder))
    with pytest.raises(ScenarioError, match=r"cannot be loaded: .*trust_remote_code"):
        load(make_run, plugin)


def test_other_templates_of_a_tokenizer_are_in_the_fingerprint(tmp_path: Path) -> None:
    folder = tokenizer_folder(tmp_path, MARKED)
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    options = plugin_of(path, messages="messages", tokenizer=str(folder)).options
    before = options.content_fingerprint(0)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "default.jinja").write_text(UNMARKED)
    assert options.content_fingerprint(0) != before


def test_plain_turns_are_lines_with_their_roles(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    dataset = load(make_run, plugin_of(path, messages="messages"), 256)
    assert texts(dataset, 3) == (
        "system:\nBe short.\nuser:\nHello number 3\nassistant:\nHi, 3!<|endoftext|>\n"
        "user:\nAnd now?\nassistant:\nNow  we part. <|endoftext|>\n",
        "Hi, 3!<|endoftext|>Now  we part. <|endoftext|>",
    )


def test_prompts_and_answers_take_a_template_where_one_is_named(
    make_run: MakeRun, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", PAIRS)
    dataset = load(make_run, plugin_of(path, chat_template="plain"), 128)
    assert texts(dataset, 1) == (
        "user:\nWhat is 1 and 1?\n\nassistant:\nIt is 2, which is even.<|endoftext|>\n",
        "It is 2, which is even.<|endoftext|>",
    )


def test_a_template_whose_answers_cannot_be_told_is_refused(
    make_run: MakeRun, tmp_path: Path
) -> None:
    forgetful = tmp_path / "forgetful.jinja"
    forgetful.write_text("{{ messages[-1]['content'] }}")
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    plugin = plugin_of(path, messages="messages", chat_template=str(forgetful))
    with pytest.raises(ScenarioError, match=r"rows.jsonl:1: .* mark answers in the template"):
        load(make_run, plugin)
    learning_all = plugin_of(
        path, messages="messages", chat_template=str(forgetful), train_on="all"
    )
    assert texts(load(make_run, learning_all), 3)[0] == "Now  we part. "


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ 2.0 ** 10000 }}", "OverflowError: "),
        ("{{ 1 // 0 }}", "ZeroDivisionError: "),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError: "),
        ("{{ messages[0]['content'] * 2 ** 62 }}", "OverflowError|more than 67,108,864 bytes"),
        ("{{ ('x' * 2 ** 21) | indent(2 ** 31) }}", "more than 67,108,864 bytes"),
        (
            "{% set all = namespace(text='x') %}{% for _ in range(99) %}"
            "{% set all.text = all.text + all.text %}{% endfor %}",
            "more than 67,108,864 bytes",
        ),
    ],
)
def test_a_template_that_overflows_is_the_templates_error(
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    said: str,
) -> None:
    monkeypatch.setattr(conversations_impl, "MOST_BYTES_OF_A_ROW", 1 << 26)
    template = tmp_path / "template.jinja"
    template.write_text(source)
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    plugin = plugin_of(path, messages="messages", chat_template=str(template), train_on="all")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ScenarioError, match=rf"rows.jsonl:1: data.chat_template: .*(?:{said})"):
        load(make_run, plugin)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_a_template_that_asks_for_the_date_gets_the_same_on_any_day(
    make_run: MakeRun, tmp_path: Path
) -> None:
    dated = tmp_path / "dated.jinja"
    date = "{{ strftime_now('%d %b %Y') if strftime_now is defined else 'never' }}\n"
    dated.write_text("\n" + date + MARKED)
    path = write_rows(tmp_path / "rows.jsonl", CHATS)
    plugin = plugin_of(path, messages="messages", chat_template=str(dated))
    whole, learned = texts(load(make_run, plugin, 256), 3)
    assert whole.startswith("\n01 Jan 2026\n<|system|>")
    assert learned == "Hi, 3!<|endoftext|>Now  we part. <|endoftext|>"


# What is learned.


def test_batches_count_answers_alone_and_mask_the_rest(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", PAIRS)
    run = make_run(
        data={"sequence_length": 64}, train={"micro_batch_size": 4, "gradient_accumulation": 2}
    )
    plugin = plugin_of(path)
    run.dataset = plugin.load_data(run)
    first, second = islice(plugin.build_batches(run), 2)
    for batch in (first, second):
        shifted = batch.inputs["labels"][:, 1:]
        assert batch.tokens.supervised == int((shifted != IGNORED_LABEL).sum())
        assert batch.tokens.supervised < batch.tokens.real < batch.tokens.processed
    total = first.tokens.supervised + second.tokens.supervised
    assert {first.supervised_in_step, second.supervised_in_step} == {total}


def test_all_tokens_are_learned_where_that_is_asked_for(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", PAIRS)
    dataset = load(make_run, plugin_of(path, train_on="all"))
    assert dataset.supervised_lengths.tolist() == (dataset.lengths - 1).tolist()


def test_a_sample_whose_answer_is_cut_away_is_left_out_and_counted(
    make_run: MakeRun, tmp_path: Path
) -> None:
    rows = [*PAIRS[:5], {"prompt": "long " * 200, "answer": "never read"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    run = make_run(data={"sequence_length": 24})
    dataset = plugin_of(path).load_data(run)
    assert len(dataset) == 5
    found = evidence_of(run)
    assert found["samples_without_answer"] == 1
    assert found["samples_cut"] >= 1
    assert "1 samples without an answer left out" in found["summary"]
    assert int(dataset.supervised_lengths.min()) > 0
    with pytest.raises(
        ScenarioError, match=r"no prompt with an answer is left within data\.sequence_length 2"
    ):
        load(make_run, plugin_of(path), 2)


def test_rows_that_the_limit_leaves_out_are_mentioned(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", PAIRS)
    found = []
    for limit in (10_000, 1_000):
        run = make_run(data={"sequence_length": 64})
        plugin_of(path, limit_bytes=limit).load_data(run)
        found.append(evidence_of(run))
    whole, part = found
    assert (whole["limited"], part["limited"]) == (False, True)
    assert part["samples"] < whole["samples"] == len(PAIRS)
    assert "only what data.limit_bytes 1,000 lets be read" in part["summary"]


def test_packed_samples_are_the_row_of_all_tokens(make_run: MakeRun, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", PAIRS)
    packed = load(make_run, plugin_of(path, packing=True), 32)
    apart = load(make_run, plugin_of(path), 64)
    row = np.concatenate([apart.sample(n) for n in range(len(apart))])
    flags = np.concatenate([apart.labels(n) != IGNORED_LABEL for n in range(len(apart))])
    assert set(packed.lengths.tolist()) == {32}
    for index, start in enumerate(packed.starts.tolist()):
        assert packed.sample(index).tolist() == row[start : start + 32].tolist()
        learned = packed.labels(index) != IGNORED_LABEL
        assert learned[1:].tolist() == flags[start + 1 : start + 32].tolist()
        assert not learned[0]


# Errors.


@pytest.mark.parametrize(
    ("row", "options", "problem"),
    [
        ({"prompt": "a", "anwser": "b"}, {}, "no field 'answer'; did you mean 'anwser'"),
        ({"q": "a"}, {}, "no field 'prompt'; known: q; set data.prompt"),
        ({"prompt": 3, "answer": "b"}, {}, "'prompt' is int, expected text"),
        ({"messages": "hi"}, {"messages": "messages"}, "expected a list of messages"),
        ({"messages": [{"content": "hi"}]}, {"messages": "messages"}, "message 1 has no `role`"),
        ({"messages": ["hi"]}, {"messages": "messages"}, "message 1 has no `role`"),
        (
            {"messages": [{"from": "humam", "value": "hi"}]},
            {"messages": "messages"},
            "message 1 is from 'humam'; did you mean 'human'",
        ),
        (
            {"messages": [{"from": "gpt", "text": "hi"}]},
            {"messages": "messages"},
            "message 1 is from 'gpt' and has no text in `value`",
        ),
        ({"conversations": []}, {}, "set data.prompt, or data.messages for a list"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    row: dict[str, Any], options: dict[str, Any], problem: str, make_run: MakeRun, tmp_path: Path
) -> None:
    path = write_rows(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ScenarioError, match=problem) as caught:
        load(make_run, plugin_of(path, **options))
    assert "rows.jsonl:1" in str(caught.value)


@pytest.mark.parametrize("kind", [Instructions, Text])
def test_pretrained_weights_want_their_own_tokenizer(kind: type[Plugin[Any]]) -> None:
    experiment = make_experiment(scenario={"model": {"id": "./saved", "weights": "pretrained"}})
    with pytest.raises(ScenarioError, match=r"\./saved has pretrained weights.*`tokenizer: train`"):
        list(kind(kind.Options()).check_scenario(experiment))
    asked = kind.Options.model_validate({"tokenizer": "train"})
    assert list(kind(asked).check_scenario(experiment)) == []
    assert list(kind(kind.Options()).check_scenario(make_experiment())) == []
