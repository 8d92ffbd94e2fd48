"""Options of data plugins that tokenize text: a tokenizer of that text, or one that is there."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from accel_bench import Experiment, Options
from accel_bench.builtin.data.text_sources import TextFile, content_digest
from accel_bench.errors import ScenarioError


class TokenizerOptions(Options):
    """Which tokenizer makes the tokens."""

    tokenizer: str = Field("train", min_length=1)
    """`train`: a byte-level BPE of this text; else the path of a tokenizer.json."""

    vocab_size: int = Field(2048, ge=258, le=10_000_000)
    """Largest vocabulary of a trained tokenizer; at most the vocabulary of the model."""

    tokenizer_files: int = Field(120, ge=1, le=10_000_000)
    """Documents that a tokenizer is trained on, evenly spread over all."""

    end_of_text: str = Field("<|endoftext|>", min_length=1)
    """Token behind each document; a tokenizer.json must know it."""

    def tokenizer_path(self) -> Path | None:
        """Return the file of a finished tokenizer; None when one is to be trained."""
        return None if self.tokenizer == "train" else Path(os.path.expanduser(self.tokenizer))

    def check_tokenizer(self, experiment: Experiment) -> None:
        """Raise ScenarioError where a finished tokenizer is named that is not there, or none beside
        pretrained weights, to which the ids of another one mean other words."""
        model = experiment.scenario.model
        if model.weights == "pretrained" and "tokenizer" not in self.model_fields_set:
            raise ScenarioError(
                f"data.tokenizer: {model.id} has pretrained weights, to which the ids of a "
                "tokenizer trained on these data mean other words; name the tokenizer.json of the "
                "checkpoint, or say `tokenizer: train`"
            )
        path = self.tokenizer_path()
        if path is not None and not path.is_file():
            raise ScenarioError(
                f"data.tokenizer {str(path)!r} is no file; name a tokenizer.json, or `train`"
            )

    def tokenizer_digest(self) -> str:
        """Return the SHA-256 of a finished tokenizer in hexadecimal; empty without one."""
        path = self.tokenizer_path()
        if path is None:
            return ""
        return content_digest([TextFile(path, path.name, path.stat().st_size, cut=False)])
