"""Options of data plugins that tokenize text, with a trained or a given tokenizer."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from accel_bench import Experiment, Options, Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.text_sources import TextFile, content_digest, home_path

if TYPE_CHECKING:
    from typing_extensions import Self

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "config.json",
)
"""Files in transformers' folder of a saved tokenizer that determine the tokens. A model on a hub
has at least the first file."""

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(?<!\.json)")
"""Pattern of a model's id on a hub, `org/name`, unlike a file's path."""

SECONDS = 5.0
"""Time limit of a request to a hub, in seconds."""

USER_OF_ADDRESS = re.compile(r"//[^/\s]*@")
"""Pattern of user and password in a URL."""

WAY_OUT = "name a tokenizer.json, or a folder with one, or say `tokenizer: train`"


class TokenizerOptions(Options):
    """Options that choose the tokenizer."""

    tokenizer: str | None = Field(None, min_length=1)
    """Tokenizer: `train` for a byte-level BPE trained on this text, or a tokenizer.json, a folder
    with one as transformers saves it, or a hub id. null: the model's own for pretrained weights,
    whose embeddings fit no other; else `train`."""

    tokenizer_revision: str | None = Field(None, min_length=1)
    """Revision of a hub's tokenizer; null: `model.revision` for the model's own, else `main`."""

    vocab_size: int = Field(2048, ge=258, le=10_000_000)
    """Largest vocabulary of a trained tokenizer; at most the vocabulary of the model."""

    tokenizer_files: int = Field(120, ge=1, le=10_000_000)
    """Number of documents on which a tokenizer is trained, evenly spread over all."""

    end_of_text: str = Field("<|endoftext|>", min_length=1)
    """Token after each document, which a tokenizer.json must contain. The default for a tokenizer
    in a folder or on a hub is the end-of-text token that it names."""

    def of_model(self, work: Experiment | Run) -> Self:
        """Return a copy whose `tokenizer` is `train` or a local path; a hub's one is downloaded.

        If no tokenizer is named, pretrained weights get the model's own, and random ones `train`.
        Raises ScenarioError for a tokenizer that cannot be loaded.
        """
        model = work.scenario.model
        own = self.tokenizer is None and model.weights == "pretrained"
        named = model.id if own else self.tokenizer or "train"
        path = home_path(named)
        if named != "train" and not path.exists() and HUB_ID.fullmatch(named):
            own_revision = model.revision if named == model.id else None
            path = _hub_folder(named, self.tokenizer_revision or own_revision or "main")
        elif own and not (path / TOKENIZER_FILES[0]).is_file():
            raise ScenarioError(
                f"data.tokenizer: {model.id} has pretrained weights and no tokenizer.json of its "
                f"own; {WAY_OUT}, whose ids mean other words to these weights"
            )
        return self.model_copy(update={"tokenizer": "train" if named == "train" else str(path)})

    def tokenizer_folder(self) -> Path | None:
        """Return the folder of a tokenizer saved by transformers, or None for other tokenizers."""
        path = home_path(self.tokenizer or "train")
        return path if self.tokenizer != "train" and path.is_dir() else None

    def tokenizer_path(self) -> Path | None:
        """Return the path of the tokenizer's tokenizer.json, or None if it is to be trained."""
        if self.tokenizer in (None, "train"):
            return None
        folder = self.tokenizer_folder()
        return folder / TOKENIZER_FILES[0] if folder else home_path(str(self.tokenizer))

    def tokenizer_name(self) -> str:
        """Return the tokenizer's name: `train`, `org/name@commit` of a hub, or a file or folder."""
        path = Path(self.tokenizer or "train")
        if path.parent.name != "snapshots":
            return str(path)
        return f"{path.parents[1].name.removeprefix('models--').replace('--', '/')}@{path.name}"

    def files_beside_tokenizer(self) -> list[TextFile]:
        """Return the files in the tokenizer's folder, beside tokenizer.json, that affect tokens."""
        folder = self.tokenizer_folder()
        paths = [folder / name for name in TOKENIZER_FILES[1:]] if folder else []
        paths += sorted(folder.glob("additional_chat_templates/*.jinja")) if folder else []
        return [file_of(path) for path in paths if path.is_file()]

    def check_tokenizer(self) -> None:
        """Raise ScenarioError if the tokenizer.json of the tokenizer does not exist."""
        path = self.tokenizer_path()
        if path is not None and not path.is_file():
            raise ScenarioError(f"data.tokenizer {str(path)!r} is no file; {WAY_OUT}")

    def tokenizer_digest(self) -> str:
        """Return the SHA-256 of the tokenizer.json in hexadecimal; empty if it is to be trained."""
        path = self.tokenizer_path()
        return "" if path is None else content_digest([file_of(path)])


def file_of(path: Path) -> TextFile:
    """Return a `TextFile` for the whole file at a path, named by its file name."""
    return TextFile(path, path.name, path.stat().st_size, cut=False)


@cache
def _hub_folder(name: str, revision: str) -> Path:
    """Return the cache folder of a hub's tokenizer, after downloading the files it lacks.

    Cached files are never downloaded again, so that all processes of a session read one version.
    """
    from huggingface_hub import try_to_load_from_cache

    missing = [
        file
        for file in TOKENIZER_FILES
        if try_to_load_from_cache(name, file, revision=revision) is None
    ]
    problem = _download(name, revision, missing) if missing else ""
    cached = try_to_load_from_cache(name, TOKENIZER_FILES[0], revision=revision)
    if isinstance(cached, str):
        return Path(cached).parent
    at = "" if revision == "main" else f" at revision {revision!r}"
    reason = problem or "it has none"
    raise ScenarioError(
        f"data.tokenizer {name!r}{at}: its tokenizer.json cannot be loaded from the hub: {reason}; "
        f"{WAY_OUT}"
    )


def _download(name: str, revision: str, files: Sequence[str]) -> str:
    """Download into the cache the files that the hub has; return an error's text, empty if none."""
    from huggingface_hub import HfApi, errors, hf_hub_download

    endpoint = os.environ.get("HF_ENDPOINT")
    try:
        # This request is not repeated for half a minute where there is no network.
        HfApi(endpoint=endpoint).model_info(name, revision=revision, timeout=SECONDS)
        for file in files:
            try:
                hf_hub_download(name, file, revision=revision, endpoint=endpoint)
            except errors.EntryNotFoundError as error:
                if isinstance(error, errors.LocalEntryNotFoundError):
                    raise
    except errors.RevisionNotFoundError:
        return "the hub has no such revision"
    except errors.GatedRepoError:
        return "its files are only for those with access (ask for it on the hub, and set HF_TOKEN)"
    except errors.RepositoryNotFoundError:
        return "the hub has no such model, or shows it only to those who may see it"
    except Exception as error:  # What carries requests has errors of its own.
        text = (str(error).strip() or type(error).__name__).partition("\n")[0]
        return USER_OF_ADDRESS.sub("//", text)
    return ""
