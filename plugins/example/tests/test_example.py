"""The plugin `example`: only the last blocks train, counts are right, and undo restores."""

import pytest
import torch
from accel_bench_example import Example
from pydantic import ValidationError
from torch import nn

from accel_bench.errors import PluginError
from accel_bench.testing import check_plugin, close_run, evidence_of, make_run, run_plugin


class Model(nn.Module):
    """An embedding, three blocks and a head, as a language model has them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path, model=Model())


def make_plugin(**options: object) -> Example:
    return Example(Example.Options(**options), "example")


def trained(model: nn.Module) -> set[str]:
    """Names of the tensors that get a gradient in a real backward pass."""
    model(torch.arange(7)).sum().backward()
    return {name for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_only_the_last_block_gets_a_gradient(run):
    make_plugin().accelerate_model(run)
    assert trained(run.model) == {"layers.2.weight", "layers.2.bias"}


def test_as_many_blocks_are_trained_as_the_option_says(run):
    make_plugin(trainable_blocks=2).accelerate_model(run)
    assert {name.rsplit(".", 1)[0] for name in trained(run.model)} == {"layers.1", "layers.2"}


def test_the_evidence_counts_every_weight_once(run):
    plugin = make_plugin()
    plugin.accelerate_model(run)
    counts = evidence_of(run)
    assert counts == {"frozen_parameters": 7 * 4 + 2 * 20 + 35, "trainable_parameters": 20}


def test_closing_makes_trainable_again_what_it_froze_and_nothing_else(run):
    run.model.head.weight.requires_grad_(False)
    plugin = make_plugin()
    plugin.accelerate_model(run)
    close_run(run)
    frozen = [name for name, p in run.model.named_parameters() if not p.requires_grad]
    assert frozen == ["head.weight"]


def test_more_blocks_than_there_are_is_an_error_that_says_how_many(run):
    with pytest.raises(PluginError, match="has 3 blocks"):
        make_plugin(trainable_blocks=4).accelerate_model(run)


@pytest.mark.parametrize("options", [{"trainable_blocks": 0}, {"trainable_block": 1}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        Example.Options(**options)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.release)])
def test_it_keeps_the_contract_and_trains_something_else_by_design(every):
    few = {} if every else {"archs": ["GPT2LMHeadModel"], "dtypes": []}
    report = check_plugin("example", other_work=True, **few)
    said = {clause.name: clause.sentence for clause in report.unproven}
    assert "acknowledged by other_work=True" in said["loss of the baseline"]


def test_under_lora_only_adapters_of_the_last_block_are_trained():
    result = run_plugin("example", scenario={"adapter": "lora"})
    assert result.status.completed, result.reasons
    evidence = result.ranks[0].evidence
    trained = evidence["lora"]["trainable_parameters"]
    assert evidence["example"]["trainable_parameters"] == trained / 2
