"""Captions: a byte is a token, and a question is not supervised."""

from __future__ import annotations

from pathlib import Path

import pytest
from media_works import built_run

from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.token_batches import IGNORED_LABEL


def test_a_caption_is_the_name_of_what_is_drawn(tmp_path: Path) -> None:
    run = built_run(tmp_path, "clip")
    batch = next(run.batches)
    assert run.dataset.names[:2] == ("digit zero", "digit one")
    for ids, mask in zip(batch.inputs["input_ids"], batch.inputs["attention_mask"], strict=True):
        beginning, *text, end = ids[mask.bool()].tolist()
        assert bytes(text).decode() in run.dataset.names
        assert (beginning, end) == (256, 257)
    assert batch.tokens.processed == batch.tokens.supervised == 4


def test_an_answer_is_supervised_and_its_question_is_not(tmp_path: Path) -> None:
    run = built_run(tmp_path, "smolvlm", question="Which word?")
    batch = next(run.batches)
    config = run.model.config
    for ids, labels in zip(batch.inputs["input_ids"], batch.inputs["labels"], strict=True):
        answer = labels[labels != IGNORED_LABEL].tolist()
        assert bytes(answer[:-1]).decode() in run.dataset.names
        assert answer[-1] == config.text_config.eos_token_id
        before = ids[: int((labels != IGNORED_LABEL).nonzero()[0])].tolist()
        assert bytes(one for one in before if one < 256).decode() == "Which word?"
        assert before.count(config.image_token_id) == 4
    assert batch.tokens.supervised == int((batch.inputs["labels"] != IGNORED_LABEL).sum())


def test_a_sequence_length_that_no_answer_fits_into_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"data\.sequence_length is 20: set .* or more"):
        built_run(tmp_path, "smolvlm", sequence_length=20)
