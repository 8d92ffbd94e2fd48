"""Flattened and padded batches of the same samples train alike, without leaks."""

from itertools import islice

import numpy as np
import pytest
import torch
from accel_bench_padding_free import WITHOUT_BLOCKS, PaddingFree
from accel_bench_padding_free.batches import FlatBatches, flat_inputs
from accel_bench_padding_free.impl.attention import (
    SeparatedAttention,
    by_flash_attention,
    choose_attention,
)
from accel_bench_padding_free.impl.isolation import prove_isolation
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

from accel_bench.errors import InvalidRunError, PluginError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.modeling.data.token_batches import batches_of

ONLY_EAGER = {"gemma2"}
"""Models with capped attention scores, which sdpa does not support."""

MODEL_TYPES = sorted(
    name
    for name, architecture in CLASSES.items()
    if architecture in PaddingFree.restricted_model_archs and name != "gemma3"
)

# What torch says of itself while it traces is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

TRAIN = {"train": {"micro_batch_size": 4, "gradient_accumulation": 2}}


def flattened(run, attention, sampler="same"):
    return list(islice(iter(FlatBatches(run, sampler, attention)), 2))


def padded(run):
    return list(islice(batches_of(run, "longest"), 2))


def distance(first, second):
    return float((first - second).norm() / second.norm())


@pytest.fixture
def separated():
    """Replace sdpa until the test has ended."""
    replaced = SeparatedAttention("sdpa", longest=32)
    yield replaced
    replaced.undo()


def test_every_architecture_that_is_declared_is_tried_below():
    assert {CLASSES[name] for name in MODEL_TYPES} == PaddingFree.restricted_model_archs


@pytest.mark.parametrize("model_type", sorted(set(MODEL_TYPES) - ONLY_EAGER))
def test_by_sequences_loss_and_gradients_are_those_of_the_padded_step(
    make_run, tiny_model, step, model_type
):
    model, run = tiny_model(model_type), make_run(**TRAIN)
    loss, gradients = step(model, padded(run))
    replaced = SeparatedAttention("sdpa", longest=32)
    try:
        found, found_gradients = step(model, flattened(run, "varlen"))
    finally:
        replaced.undo()
    assert replaced.calls == {"one by one": 4}
    assert found == pytest.approx(loss, rel=1e-6)
    assert distance(found_gradients, gradients) < 5e-6


@pytest.mark.parametrize(
    ("model_type", "attention"),
    [
        pytest.param(name, attention, marks=() if by_default else pytest.mark.release)
        for name in MODEL_TYPES
        for attention, by_default in (("sdpa", True), ("eager", name in {"llama", *ONLY_EAGER}))
        if attention == "eager" or name not in ONLY_EAGER
    ],
)
def test_with_a_mask_loss_and_gradients_are_those_of_the_padded_step(
    make_run, tiny_model, step, model_type, attention
):
    model, run = tiny_model(model_type, attention), make_run(**TRAIN)
    loss, gradients = step(model, padded(run))
    found, found_gradients = step(model, flattened(run, "mask"))
    if CLASSES[model_type] in WITHOUT_BLOCKS:
        assert distance(found_gradients, gradients) > 1e-2
        return
    assert found == pytest.approx(loss, rel=1e-6)
    assert distance(found_gradients, gradients) < 5e-6


def test_with_a_cache_sequences_behind_a_mask_see_one_another(make_run, tiny_model, step):
    model, run = tiny_model(), make_run(**TRAIN)
    loss, gradients = step(model, padded(run))
    assert step(model, flattened(run, "mask"))[0] == pytest.approx(loss, rel=1e-6)
    model.config.use_cache = True
    leaking, leaking_gradients = step(model, flattened(run, "mask"))
    assert leaking != pytest.approx(loss, rel=1e-3)
    assert distance(leaking_gradients, gradients) > 0.1


def test_two_ranks_give_the_loss_and_the_gradients_of_one(make_run, tiny_model, step, separated):
    model = tiny_model()
    one = make_run(train={"micro_batch_size": 4, "gradient_accumulation": 2})
    loss, gradients = step(model, flattened(one, "varlen"))
    for sampler in ("same", "multipack"):
        shares = []
        for rank in range(2):
            run = make_run(rank, 2, train={"micro_batch_size": 2, "gradient_accumulation": 2})
            shares.append(step(model, flattened(run, "varlen", sampler)))
        assert sum(share for share, _ in shares) == pytest.approx(loss, rel=1e-6)
        assert distance(sum(found for _, found in shares), gradients) < 5e-6


def test_a_loss_curve_stays_that_of_padded_batches(make_run, tiny_model, separated):
    curves = []
    for make in (
        lambda run: batches_of(run, "longest"),
        lambda run: iter(FlatBatches(run, "same", "varlen")),
    ):
        model, batches = tiny_model(), make(make_run(train={"micro_batch_size": 4}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        losses = []
        for batch in islice(batches, 20):
            loss = model(**batch.inputs, num_items_in_batch=batch.supervised_in_step).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[1] == pytest.approx(curves[0], rel=1e-3)
    assert curves[0][-1] < 0.8 * curves[0][0]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_compiler_follows_and_the_loss_stays(
    make_run, tiny_model, step, separated, checkpointing
):
    run, plain, model = make_run(**TRAIN), tiny_model(), tiny_model()
    expected, gradients = step(plain, flattened(run, "varlen"))
    if checkpointing:
        enable_gradient_checkpointing(model)
    for block in model.model.layers:
        block.compile(backend="aot_eager")
    try:
        found, found_gradients = step(model, flattened(run, "varlen"))
    finally:
        torch.compiler.reset()
    assert found == pytest.approx(expected, rel=1e-6)
    assert distance(found_gradients, gradients) < 5e-6


def test_rows_of_other_sequences_need_no_further_graphs(tiny_model, separated):
    model, compiled = tiny_model(), []

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    for block in model.model.layers:
        block.compile(backend=backend)
    graphs = []
    try:
        for count in (2, 3, 4, 5, 10):
            rows = [np.arange(1, 3 + count + number) for number in range(count)]
            model(**flat_inputs(rows, "varlen")).loss.backward()
            graphs.append(len(compiled))
    finally:
        torch.compiler.reset()
    # Sizes are marked as dynamic in the second row, or in the third.
    assert graphs[2:] == graphs[2:3] * 3


def test_what_is_not_flattened_goes_the_old_way(tiny_model, separated):
    model, ids = tiny_model(), torch.arange(1, 9).reshape(1, 8)
    ours = model(input_ids=ids).logits
    separated.undo()
    assert torch.equal(ours, model(input_ids=ids).logits)
    assert separated.calls == {}


def test_undoing_puts_back_what_was_there_before():
    mapping, mine = ALL_ATTENTION_FUNCTIONS._local_mapping, lambda *_, **__: None
    assert "sdpa" not in mapping
    SeparatedAttention("sdpa", longest=32).undo()
    assert "sdpa" not in mapping
    ALL_ATTENTION_FUNCTIONS["sdpa"] = mine
    try:
        SeparatedAttention("sdpa", longest=32).undo()
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is mine
    finally:
        del ALL_ATTENTION_FUNCTIONS["sdpa"]


def test_without_our_attention_flattened_batches_give_no_finite_loss(make_run, tiny_model):
    batch = next(iter(FlatBatches(make_run(), "same", "varlen")))
    loss = tiny_model()(**batch.inputs, num_items_in_batch=batch.supervised_in_step).loss
    assert torch.isnan(loss)


@pytest.mark.parametrize("argument", [{"softcap": 30.0}, {"s_aux": 1}, {"is_causal": False}])
def test_arguments_that_it_does_not_know_are_refused(separated, argument):
    attend, heads = ALL_ATTENTION_FUNCTIONS["sdpa"], torch.ones(1, 2, 4, 8)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(PluginError, match=f"asks for {next(iter(argument))}.*attention: mask"):
        attend(None, heads, heads, heads, None, cu_seq_lens_q=starts, **argument)


def test_flash_attention_is_told_where_sequences_begin_and_how_long_they_can_be():
    told, counted = {}, []

    def flash(module, query, key, value, attention_mask, **others):
        told.update(others, attention_mask=attention_mask)

    attend, poison = by_flash_attention(flash, 32, counted.append), torch.full((1,), torch.nan)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    attend(None, 1, 2, 3, poison, cu_seq_lens_q=starts, scaling=0.5)
    assert told["attention_mask"] is None
    assert told["cu_seq_lens_q"] is told["cu_seq_lens_k"] is starts
    assert (told["max_length_q"], told["max_length_k"], told["scaling"]) == (32, 32, 0.5)
    assert counted == ["flash_attn_varlen_func"]
    attend(None, 1, 2, 3, poison, cu_seq_lens_q=starts, max_length_q=40)  # another collator's batch
    assert (told["max_length_q"], told["max_length_k"]) == (40, 40)
    attend(None, 1, 2, 3, poison)
    assert told["attention_mask"] is poison


@pytest.mark.parametrize("attention", ["varlen", "mask"])
def test_a_model_proves_that_its_sequences_are_apart(make_run, tiny_model, separated, attention):
    model = tiny_model("gpt2", resid_pdrop=0.1, embd_pdrop=0.1)
    before = {name: module.training for name, module in model.named_modules()}
    assert prove_isolation(make_run(model=model), attention) < 1e-5
    assert {name: module.training for name, module in model.named_modules()} == before


@pytest.mark.parametrize(
    "model_type, changes",
    [("llama", {"use_cache": True}), ("opt", {"max_position_embeddings": 64})],
)
def test_a_model_whose_sequences_see_one_another_is_refused(
    make_run, tiny_model, model_type, changes
):
    model = tiny_model(model_type, **changes)
    with pytest.raises(InvalidRunError, match="depends on the one before it in the row"):
        prove_isolation(make_run(model=model), "mask")


def test_the_choice_says_why_it_is_a_mask(make_run, tiny_model):
    capped = make_run(model=tiny_model("gemma2", "eager"))
    assert choose_attention(capped, "auto") == ("mask", "the model caps its attention scores")
    with pytest.raises(PluginError, match="not possible here: the model caps"):
        choose_attention(capped, "varlen")
