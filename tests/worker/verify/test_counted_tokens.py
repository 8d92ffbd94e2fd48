"""Tokens that were counted are those that batches hold and that the model sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_torch.engine_impl import TorchEngine
from fault_plugins.faults import plugin, source

from accel_bench import Batch, Device, Experiment, Options, Run, Scenario, Status, TokenCounts
from accel_bench.builtin.causal_lm import CausalLM
from accel_bench.errors import InvalidRunError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.modeling.loading import build_config
from accel_bench.modeling.random_weights import random_model
from accel_bench.scenario.models import Stack
from accel_bench.testing import run_plugin
from accel_bench.worker.verify.counted_tokens import CountedTokens

# PEFT asks transformers by a name that is being replaced.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),
    # So does the compiler with tensors between compiled blocks.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

LENGTHS = (7, 16, 5)
WIDTH = 16

Spoil = Callable[[Run], None]


class OneStep:
    """A stopwatch that lets an engine take one step."""

    def __init__(self, counted: CountedTokens) -> None:
        self.running = True
        self.lap = counted.at_first_lap(self._lap)

    def mark(self, phase: str) -> None:
        """Do nothing."""

    def _lap(self, batches: Sequence[Batch], loss: Any) -> None:
        self.running = False


@pytest.fixture
def make_llama(tmp_path: Path) -> Callable[..., Run]:
    """Return `make_llama(batches, **settings)`: a run around a small llama with these batches."""

    def build(batches: Sequence[Batch], **settings: Any) -> Run:
        overrides = {"num_hidden_layers": 2}
        scenario = Scenario.model_validate_json(
            json.dumps(
                {
                    "resources": {"device": "cpu"},
                    "model": {"id": "tiny-llama-cpu", "overrides": overrides},
                    "train": {"gradient_accumulation": len(batches)},
                    **settings,
                }
            )
        )
        experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
        run = Run(experiment, Device("cpu"), tmp_path, tmp_path, task=CausalLM(Options()))
        model = random_model(build_config(scenario.model), torch.float32, "cpu", 0)[0].train()
        run.model = run.unwrapped_model = model
        run.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.batches = iter(batches)
        return run

    return build


def padded(lengths: Sequence[int] = LENGTHS, masked: bool = True) -> Batch:
    """Rows of these lengths, padded to WIDTH."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, 128, (len(lengths), WIDTH), generator=generator)
    real = torch.arange(WIDTH) < torch.tensor(lengths)[:, None]
    ids[~real] = 0
    inputs = {"input_ids": ids, "labels": torch.where(real, ids, -100)}
    if masked:
        inputs["attention_mask"] = real.long()
    total = sum(lengths)
    counts = TokenCounts(ids.numel(), total, total - len(lengths))
    return Batch(inputs, len(lengths), counts, total - len(lengths))


def flat(lengths: Sequence[int] = LENGTHS) -> Batch:
    """The same sequences one after the other in one row."""
    rows = padded(lengths).inputs["input_ids"]
    parts = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    ids = torch.cat(parts)[None]
    labels = torch.cat([torch.cat([torch.tensor([-100]), part[1:]]) for part in parts])[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    inputs = {"input_ids": ids, "labels": labels, "position_ids": positions}
    total = sum(lengths)
    counts = TokenCounts(total, total, total - len(lengths))
    return Batch(inputs, len(lengths), counts, total - len(lengths))


def counting(batch: Batch, **changes: int) -> Batch:
    """The same batch with other counts."""
    return replace(batch, tokens=replace(batch.tokens, **changes))


def train(run: Run, spoil: Spoil = lambda run: None) -> list[str]:
    """Take one step; return why it is invalid."""
    spoil(run)
    counted = CountedTokens(run)
    try:
        TorchEngine(run).run(OneStep(counted))
    except InvalidRunError as error:
        return list(error.reasons)
    finally:
        counted.remove()
    hooks = [module._forward_pre_hooks for module in run.unwrapped_model.modules()]
    assert not any(hooks)
    return []


def lora(run: Run) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"])
    run.model = run.unwrapped_model = get_peft_model(run.model, config)


def checkpointed(run: Run) -> None:
    enable_gradient_checkpointing(run.model)


def wholly_checkpointed(run: Run) -> None:
    """Compute the whole model again in the backward pass, its embedding too."""
    from torch.utils.checkpoint import checkpoint

    plain = run.model.forward
    run.model.forward = lambda **inputs: checkpoint(plain, use_reentrant=False, **inputs)


def without_padding(run: Run) -> None:
    """Leave the columns away that hold padding alone."""
    plain = run.model.forward

    def forward(**inputs: Any) -> Any:
        width = int(inputs["attention_mask"].sum(-1).max())
        tensors = {k: v[:, :width] for k, v in inputs.items() if isinstance(v, torch.Tensor)}
        return plain(**{**inputs, **tensors})

    run.model.forward = forward


def without_the_last_token(run: Run) -> None:
    """Leave away what predicts nothing, and shift the labels here."""
    plain = run.model.forward

    def forward(**inputs: Any) -> Any:
        labels = inputs["labels"][:, 1:].contiguous()
        short = {"input_ids": inputs["input_ids"][:, :-1], "shift_labels": labels}
        rest = {"num_items_in_batch": inputs["num_items_in_batch"]}
        return plain(**short, **rest, labels=labels)

    run.model.forward = forward


def compiled_blocks(run: Run) -> None:
    for layer in run.model.model.layers:
        layer.compile(backend="eager")


def compiled(run: Run) -> None:
    run.model.compile(backend="eager")


def compiled_forward(run: Run) -> None:
    run.model.forward = torch.compile(run.model.forward, backend="eager")


def compiled_around(run: Run) -> None:
    run.model = torch.compile(run.model, backend="eager")


HONEST: Mapping[str, tuple[list[Batch], Spoil]] = {
    "padded": ([padded()], lambda run: None),
    "accumulated": ([padded(), padded((16, 16, 2))], lambda run: None),
    "without a mask": ([padded(masked=False)], lambda run: None),
    "full rows": ([padded((WIDTH, WIDTH), masked=False)], lambda run: None),
    "padding-free": ([flat(), flat((3, 4))], lambda run: None),
    "LoRA, of the embedding too": ([padded()], lora),
    "checkpointing": ([padded()], checkpointed),
    "checkpointing of the whole model": ([padded()], wholly_checkpointed),
    "padding left out in the model": ([padded((7, 9, 5))], without_padding),
    "last tokens left out": ([padded((WIDTH, WIDTH), masked=False)], without_the_last_token),
    "compiled blocks": ([padded()], compiled_blocks),
    "compiled": ([padded()], compiled),
    "compiled forward": ([padded()], compiled_forward),
    "compiled around": ([padded()], compiled_around),
}
"""Batches, and what is done to the model, where all that is counted is trained on."""


@pytest.mark.parametrize("case", HONEST)
def test_honest_counts_pass(make_llama: Callable[..., Run], case: str) -> None:
    batches, spoil = HONEST[case]
    assert train(make_llama(batches), spoil) == []


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (counting(padded(), real=48), "step 0 counted 48 real tokens, and its batches hold 28"),
        (
            counting(padded(masked=False), processed=96, real=56),
            "step 0 counted 96 processed tokens, and its batches hold 48",
        ),
        (
            counting(flat(), processed=56, real=56),
            "step 0 counted 56 real tokens, and its batches hold 28",
        ),
        (
            counting(padded(), supervised=45),
            "step 0 counted 45 supervised tokens, and its batches hold 28",
        ),
        (
            counting(padded(), supervised=5),
            "step 0 counted 5 supervised tokens, and its batches hold 25",
        ),
    ],
)
def test_counts_that_the_batches_do_not_hold_are_invalid(
    make_llama: Callable[..., Run], batch: Batch, reason: str
) -> None:
    """Padding counted as real, doubled tokens, and labels that are not there."""
    for spoil in (lambda run: None, compiled):
        assert reason in train(make_llama([batch]), spoil)


def test_a_model_that_drops_most_of_the_batch_is_invalid(make_llama: Callable[..., Run]) -> None:
    def drop(run: Run) -> None:
        plain = run.model.forward

        def forward(**inputs: Any) -> Any:
            tensors = {k: v[:1] for k, v in inputs.items() if isinstance(v, torch.Tensor)}
            return plain(**{**inputs, **tensors})

        run.model.forward = forward

    batch = padded((WIDTH,) * 4, masked=False)
    assert train(make_llama([batch, batch]), drop) == [
        "step 0 counted 128 real tokens, and the model's embedding saw 32 of them",
        "step 0 counted 120 supervised tokens, and the model's output projection saw 32 tokens",
    ]


def test_tokens_dropped_after_the_embedding_are_invalid(make_llama: Callable[..., Run]) -> None:
    def drop(run: Run) -> None:
        run.model.model.register_forward_hook(shorten)

    def shorten(module: Any, inputs: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, :4]
        return output

    def loss_of_the_rest(run: Run) -> None:
        drop(run)
        plain = run.model.forward
        run.model.forward = lambda **given: plain(**{**given, "labels": given["labels"][:, :4]})

    batch = padded((WIDTH, WIDTH), masked=False)
    assert train(make_llama([batch]), loss_of_the_rest) == [
        "step 0 counted 30 supervised tokens, and the model's output projection saw 8 tokens"
    ]


def test_an_engine_that_trains_on_other_tokens_than_it_laps_is_invalid(
    make_llama: Callable[..., Run],
) -> None:
    """Ids are compared where the embedding saw fewer tokens than there are."""
    run = make_llama([padded((WIDTH, WIDTH), masked=False)])
    counted = CountedTokens(run)
    run.model(input_ids=torch.full((1, 20), 127), labels=torch.full((1, 20), 127))
    with pytest.raises(InvalidRunError, match=r"counted 32 real tokens, .* saw [01] of them"):
        OneStep(counted).lap(list(run.batches), 1.0)


def test_batches_in_another_form_are_not_judged(make_llama: Callable[..., Run]) -> None:
    counted = CountedTokens(make_llama([padded()]))
    counted.check([Batch({"x": torch.ones(2)}, 1, TokenCounts(9, 9, 9), 9), padded()])
    counted.check([Batch({}, 1, TokenCounts(9, 9, 9), 9)])
    counted.remove()


DROPPING = """
plain = run.model.forward

        def forward(**inputs):
            rows = {k: v[:1] for k, v in inputs.items() if hasattr(v, "shape")}
            return plain(**{**inputs, **rows})

        run.model.forward = forward
"""


def test_a_plugin_that_drops_most_of_the_batch_makes_its_run_invalid(tmp_path: Path) -> None:
    with plugin(tmp_path, source(acting=DROPPING.strip())) as name:
        result = run_plugin(name, scenario={"train": {"micro_batch_size": 4}})
    assert result.status is Status.INVALID
    assert result.reasons[0].startswith("step 0 counted ")
    assert "real tokens, and the model's embedding saw" in result.reasons[0]
