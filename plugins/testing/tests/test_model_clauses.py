"""The kit tries what a model from outside must offer, and names what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from .checking import check, violations

pytestmark = pytest.mark.long

SOURCE = """\
'''A model of the tests that is none of transformers'.'''
from types import SimpleNamespace
from accel_bench import Plugin, hookimpl


class It(Plugin):
    '''Loads embeddings.'''

    @hookimpl
    def load_model(self, run):
        import torch
        from torch import nn
        from accel_bench import check_fit

        class Tiny(nn.Module):
            def __init__(self):
                super().__init__()
                {config}
                self.embedding = nn.Embedding(2048, 16)

            def forward(self, input_ids, labels, num_items_in_batch=None, **others):
                logits = self.embedding(input_ids) @ self.embedding.weight.T
                flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
                return SimpleNamespace(loss={loss})

        {late}
        torch.manual_seed(run.scenario.train.seed)
        model = Tiny()
        {fit}
        run.on_evidence(lambda: {{"parameters": 2048 * 16}})
        return model
"""

SUM = "nn.functional.cross_entropy(*flat, reduction='sum') / num_items_in_batch"


def test_a_model_that_offers_everything_but_checkpointing_passes(tmp_path: Path) -> None:
    config = "self.config = SimpleNamespace(vocab_size=2048)"
    text = SOURCE.format(loss=SUM, fit="check_fit(model.config, run)", late="pass", config=config)
    report = check(tmp_path, text)
    assert {"accumulation", "memory", "vocabulary"} <= {one.name for one in report.proven}
    assert "checkpointing" in {one.name for one in report.unproven}


def test_each_thing_that_a_model_does_not_offer_is_a_violation(tmp_path: Path) -> None:
    (tmp_path / "heavy_of_theirs.py").touch()
    text = SOURCE.format(
        loss="nn.functional.cross_entropy(*flat)",
        fit="pass",
        late="import heavy_of_theirs",
        config="pass",
    )
    accumulation, memory, vocabulary = violations(tmp_path, text)
    assert "ignores num_items_in_batch" in accumulation
    assert memory.startswith("memory: heavy_of_theirs is imported after prepare_process")
    assert "give the model a `config` with vocab_size, or call accel_bench.check_fit" in vocabulary


def test_a_model_in_the_box_is_proven_to_accumulate_and_to_recompute() -> None:
    from accel_bench.testing import check_plugin

    report = check_plugin("huggingface", archs=(), dtypes=())
    names = {"accumulation", "memory", "vocabulary", "checkpointing"}
    assert names <= {one.name for one in report.proven}
