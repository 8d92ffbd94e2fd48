"""Tokenizers of the model, of a folder and of a hub server on this machine."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from accel_bench_huggingface.text import Text
from accel_bench_text_tasks.data.instructions import Instructions
from analysis_factory import make_experiment
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from accel_bench import Plugin, Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import tokenizer_options
from accel_bench.modeling.data.tokenizing import train_bpe
from accel_bench.testing import evidence_of

MakeRun = Callable[..., Run]

COMMIT = "c0ffee" * 6 + "c0ff"
"""Revision of the hub's only model."""

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
)

ASKED: list[str] = []
"""Paths of files requested from the hub."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer beside a model, saved by transformers; texts end with `</s>`."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    special = ("</s>", "[P]", "<|user|>", "<|assistant|>")
    backend = train_bpe(["Hello there, the quick fox."], 300, special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="[P]")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A prompt with an answer, and a text."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "Hello", "answer": "there", "text": "the quick fox"}\n')
    return path


@pytest.fixture
def hub(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """A hub with the model acme/llama, and an empty cache; the function ends the hub."""

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            ASKED.append(path)
            is_info = path.startswith("/api/models/")
            middle = "/revision/" if is_info else "/resolve/"
            name, _, rest = path.removeprefix("/api/models").strip("/").partition(middle)
            revision, _, file = rest.partition("/")
            if name not in ("acme/llama", "acme/empty"):
                self._answer(404, b"", error="RepoNotFound")
            elif revision not in ("main", "v1", COMMIT):
                self._answer(404, b"", error="RevisionNotFound")
            elif is_info:
                self._answer(200, json.dumps({"id": name, "siblings": []}).encode())
            elif name == "acme/empty" or not (saved / file).is_file():
                self._answer(404, b"", error="EntryNotFound")
            else:
                self._answer(200, (saved / file).read_bytes())

        def _answer(self, code: int, body: bytes, error: str = "") -> None:
            self.send_response(code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha1(body).hexdigest()}"')
            self.send_header("Content-Length", str(len(body)))
            if error:
                self.send_header("X-Error-Code", error)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    tokenizer_options._hub_folder.cache_clear()
    ASKED.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")

        def end() -> None:
            server.shutdown()
            server.server_close()

        yield end
        end()
    tokenizer_options._hub_folder.cache_clear()


def plugin_of(kind: type[Plugin[Any]], path: Path, **options: Any) -> Any:
    """The plugin on given rows."""
    chosen = {"source": "path", "path": str(path), **options}
    return kind(kind.Options.model_validate(chosen))


def text_of(run: Run, plugin: Any) -> tuple[str, dict[str, Any]]:
    """The first sample as text, and the evidence of the data."""
    dataset = plugin.load_data(run)
    tokenizer = Tokenizer.from_file(str(dataset.tokenizer_path))
    ids = dataset.sample(0).tolist()
    return str(tokenizer.decode(ids, skip_special_tokens=False)), evidence_of(run)


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_beside_pretrained_weights_the_tokenizer_is_the_models(
    weights: str, saved: Path, rows: Path, make_run: MakeRun
) -> None:
    run = make_run(
        model={"id": str(saved), "weights": weights}, data={"use": "text", "sequence_length": 32}
    )
    text = plugin_of(Text, rows, packing=False)
    found, evidence = text_of(run, text)
    own = weights == "pretrained"
    assert found == "the quick fox" + ("</s>" if own else "<|endoftext|>")
    assert evidence["tokenizer"] == (str(saved) if own else "train")
    if own:
        chat = plugin_of(Instructions, rows, chat_template="tokenizer")
        assert text_of(run, chat)[0] == "<|user|>Hello<|assistant|>there</s>"
        trained = plugin_of(Text, rows, packing=False, tokenizer="train")
        assert text_of(run, trained)[0] == "the quick fox<|endoftext|>"
        experiment = make_experiment(scenario={"model": {"id": str(saved), "weights": weights}})
        assert text.fingerprint(experiment) != trained.fingerprint(experiment)


def test_a_tokenizer_of_a_hub_is_loaded_once_and_its_commit_recorded(
    hub: Callable[[], None], rows: Path, make_run: MakeRun
) -> None:
    run = make_run(
        model={"id": "acme/llama", "weights": "pretrained", "revision": "v1"},
        data={"use": "text", "sequence_length": 32},
    )
    found, evidence = text_of(run, plugin_of(Text, rows, packing=False))
    assert found == "the quick fox</s>"
    assert evidence["tokenizer"] == f"acme/llama@{COMMIT}"
    assert ASKED and all("/v1" in path or f"/{COMMIT}/" in path for path in ASKED)
    # Another process finds it in the cache, and asks nobody.
    hub()
    tokenizer_options._hub_folder.cache_clear()
    asked = len(ASKED)
    chat = plugin_of(Instructions, rows, chat_template="tokenizer")
    assert text_of(run, chat)[0] == "<|user|>Hello<|assistant|>there</s>"
    assert len(ASKED) == asked


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"tokenizer": "acme/lama"}, "'acme/lama': .*: the hub has no such model"),
        ({"tokenizer": "acme/empty"}, "'acme/empty': .*: it has none"),
        (
            {"tokenizer": "acme/llama", "tokenizer_revision": "v2"},
            "'acme/llama' at revision 'v2': .*: the hub has no such revision",
        ),
    ],
)
@pytest.mark.usefixtures("hub")
def test_a_tokenizer_that_a_hub_does_not_have_is_an_error_with_the_way_out(
    options: dict[str, str], problem: str, rows: Path
) -> None:
    for kind in (Text, Instructions):
        with pytest.raises(ScenarioError, match=f"{problem}.*say `tokenizer: train`"):
            list(plugin_of(kind, rows, **options).check_scenario(make_experiment()))


def test_a_hub_that_is_not_reached_is_an_error(hub: Callable[[], None], rows: Path) -> None:
    hub()
    plugin = plugin_of(Text, rows, tokenizer="acme/llama")
    with pytest.raises(ScenarioError, match=r"'acme/llama': its tokenizer\.json cannot be loaded"):
        list(plugin.check_scenario(make_experiment()))


def test_a_template_needs_a_tokenizer_that_has_one(rows: Path) -> None:
    plugin = plugin_of(Instructions, rows, chat_template="tokenizer")
    with pytest.raises(ScenarioError, match="needs a tokenizer of a folder or a hub"):
        list(plugin.check_scenario(make_experiment()))
