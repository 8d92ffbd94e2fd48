"""A model from outside is refused by what it does not offer, before it trains wrongly."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from accel_bench import check_fit
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.modeling.contract import check_model, text_config
from accel_bench.testing import make_run


class Tiny(nn.Module):
    """A model that is none of transformers'."""

    def __init__(self, divides: bool = True) -> None:
        super().__init__()
        self.embedding, self.divides = nn.Embedding(8, 8), divides

    def forward(self, input_ids: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
        logits = self.embedding(input_ids) @ self.embedding.weight.T
        kind = "sum" if self.divides else "mean"
        flat = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        loss = nn.functional.cross_entropy(*flat, reduction=kind)
        return SimpleNamespace(loss=loss / num_items_in_batch if self.divides else loss)


class Deaf(nn.Module):
    """A model whose forward does not take the number of tokens."""

    def forward(self, input_ids: Any, labels: Any) -> Any:
        """Do nothing."""


def run_of(folder: Path, model: Any, accumulation: int = 4) -> Any:
    return make_run(folder, {"train": {"gradient_accumulation": accumulation}}, model=model)


def test_a_model_that_divides_its_loss_passes_and_draws_no_random_number(tmp_path: Path) -> None:
    model = Tiny()
    before = torch.get_rng_state()
    check_model(run_of(tmp_path, model))
    assert torch.equal(torch.get_rng_state(), before)
    assert model.embedding.weight.grad is None


def test_running_statistics_and_frozen_parts_stay_as_they_are(tmp_path: Path) -> None:
    model = Tiny()
    model.norm, model.frozen = nn.BatchNorm1d(8), nn.Dropout().eval()
    model.embedding.register_forward_hook(lambda module, inputs, found: model.norm(found[0])[None])
    check_model(run_of(tmp_path, model))
    assert model.norm.num_batches_tracked == 0
    assert (model.training, model.norm.training, model.frozen.training) == (True, True, False)


def test_a_model_that_ignores_the_number_of_tokens_is_refused_under_accumulation(
    tmp_path: Path,
) -> None:
    check_model(run_of(tmp_path, Tiny(divides=False), accumulation=1))  # There it is the same.
    with pytest.raises(
        PluginError, match=r"the model Tiny of plugin .* ignores num_items_in_batch"
    ):
        check_model(run_of(tmp_path, Tiny(divides=False)))


@pytest.mark.parametrize(
    ("model", "lacks"),
    [(Deaf(), "takes no num_items_in_batch"), (object(), "is no torch.nn.Module")],
)
def test_what_a_model_does_not_offer_is_named(tmp_path: Path, model: Any, lacks: str) -> None:
    with pytest.raises(PluginError, match=f"{lacks}.*modeling.contract says what"):
        check_model(run_of(tmp_path, model, accumulation=1))


def test_a_configuration_of_the_author_s_own_is_read_as_it_is(tmp_path: Path) -> None:
    own = SimpleNamespace(vocab_size=8)
    assert text_config(own) is own
    assert text_config(None) is None
    run = make_run(tmp_path, dataset=SimpleNamespace(vocab_size=9))
    with pytest.raises(ScenarioError, match="only one of 8"):
        check_fit(own, run)
