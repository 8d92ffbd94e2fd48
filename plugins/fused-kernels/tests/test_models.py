"""Every architecture with torch's kernels: loss, gradients, skipped parts, and undo."""

import inspect
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from peft import LoraConfig, get_peft_model
from transformers import T5Config, T5ForConditionalGeneration

from accel_bench.errors import PluginError

pytestmark = pytest.mark.filterwarnings("ignore")

FAMILIES = (
    "GPTBigCode Gemma Gemma2 Gemma3 Granite GraniteMoe Llama Mistral Mixtral Qwen2 Qwen3".split()
)

GRANITE_MOE = pytest.param(
    "GraniteMoe",
    marks=pytest.mark.skipif(
        Version(transformers.__version__) < Version("5.18"),
        reason="this transformers takes the loss of its router for a tensor, which it has not",
    ),
)

CLOSE = 1e-5
"""Maximum distance of float32 gradients, relative to each tensor's norm."""


def equal(found: Any, expected: Any, bench: Any) -> None:
    """Check that loss and every gradient are equal up to float32 rounding."""
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    assert bench.distance(found[1], expected[1]) < CLOSE


def adapted(bench: Any, family: str, targets: Any = "all-linear", **changes: Any) -> Any:
    """A model under LoRA with nonzero adapters."""
    model = get_peft_model(
        bench.build(family, **changes), LoraConfig(r=4, target_modules=targets)
    ).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("items", [None, 17, torch.tensor(17)])
@pytest.mark.parametrize("family", [*(one for one in FAMILIES if one != "GraniteMoe"), GRANITE_MOE])
def test_loss_and_gradients_are_the_model_s_own(family: str, items: Any, bench: Any) -> None:
    """Granite's multipliers, Mixtral's router loss and the number of items are included."""
    model = bench.build(family)
    given = {} if items is None else {"num_items_in_batch": items}
    expected = bench.step(model, **given)
    fused = bench.fuse(model)
    equal(bench.step(model, **given), expected, bench)
    bounds_logits = family == "Gemma2" or not bench.has_fused_loss
    capped = {"rms_norm"} if bounds_logits else {"rms_norm", "linear_cross_entropy"}
    absent = {"rms_norm"} if family == "GPTBigCode" else set()
    evidence = fused.evidence()
    assert set(evidence["parts"]) == capped - absent
    assert all(part["replaced"] for part in evidence["parts"].values())
    assert {"rope", "gated_mlp", "lora"} <= set(evidence["left_out"])


def test_norms_of_an_encoder_and_its_decoder_are_replaced(bench: Any) -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 48, "d_ff": 80, "d_kv": 12, "num_layers": 1, "num_heads": 4}
    config = T5Config(**sizes, vocab_size=160, dropout_rate=0.0, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).train()
    tokens = torch.randint(3, 160, (2, 13), generator=torch.Generator().manual_seed(1))

    def step() -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters()}

    expected = step()
    fused = bench.fuse(model, rms_norm=True)
    equal(step(), expected, bench)
    # Two in the block of the encoder, three in that of the decoder, and one behind each.
    assert fused.evidence()["parts"]["rms_norm"]["modules"] == {"T5LayerNorm": 7}


@pytest.mark.parametrize("family", FAMILIES)
def test_undoing_leaves_the_model_s_code_as_it_was(family: str, bench: Any) -> None:
    model = bench.build(family)
    before = bench.code_of(model)
    fused = bench.fuse(model)
    assert bench.differing(before, bench.code_of(model))
    fused.undo()
    assert bench.differing(before, bench.code_of(model)) == []


def test_weights_and_names_stay_where_they_are(bench: Any) -> None:
    model = bench.build("Llama")
    before = {name: (id(p), p.shape) for name, p in model.named_parameters()}
    modules = [(name, type(module)) for name, module in model.named_modules()]
    bench.fuse(model)
    assert {name: (id(p), p.shape) for name, p in model.named_parameters()} == before
    assert [(name, type(module)) for name, module in model.named_modules()] == modules


@pytest.mark.parametrize("family", ["Llama", "Gemma2", GRANITE_MOE])
def test_gradients_are_right_under_checkpointing(family: str, bench: Any) -> None:
    model = bench.build(family)
    expected = bench.step(model)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    bench.fuse(model)
    equal(bench.step(model), expected, bench)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("family", ["Gemma", "Granite", "Llama", "Qwen3"])
def test_in_bfloat16_the_distance_is_that_of_rounding(
    family: str, autocast: bool, bench: Any
) -> None:
    """As far from float32 as the model's own operations are, at most twice."""
    exact = bench.step(bench.build(family))
    model = bench.build(family, torch.float32 if autocast else torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        own = bench.step(model)
        bench.fuse(model)
        found = bench.step(model)
    assert found[0] == pytest.approx(own[0], rel=1e-3)
    assert bench.distance(found[1], exact[1]) < 2 * bench.distance(own[1], exact[1])


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_weights_and_activations_of_two_dtypes_give_the_model_s_own_dtype(
    family: str, bench: Any
) -> None:
    """Norms that are kept in float32 in a model of bfloat16, as some quantized bases have them."""
    model = bench.build(family, torch.bfloat16)
    norm = model.model.layers[0].input_layernorm.float()
    x = torch.randn(2, 3, 48, dtype=torch.bfloat16)
    own = norm(x)
    bench.fuse(model, rms_norm=True)
    assert norm(x).dtype == own.dtype == torch.float32
    assert torch.allclose(norm(x), own, rtol=1e-2)


def test_a_model_with_a_kept_wide_row_of_labels_shifts_them_as_transformers_does(
    bench: Any,
) -> None:
    """`shift_labels`, which some collators make themselves, count in the place of labels."""
    model = bench.build("Llama")
    tokens = torch.randint(3, 160, (2, 7), generator=torch.Generator().manual_seed(2))
    shifted = torch.roll(tokens, -2, 1)
    given = {"input_ids": tokens, "labels": tokens, "shift_labels": shifted}
    expected = model(**given).loss.item()
    bench.fuse(model)
    assert model(**given).loss.item() == pytest.approx(expected, rel=1e-6)
    assert expected != pytest.approx(model(input_ids=tokens, labels=tokens).loss.item(), rel=1e-3)


@pytest.mark.usefixtures("fused_loss")
def test_its_forward_takes_what_the_model_s_own_takes(bench: Any) -> None:
    """Tools read the names of the arguments to see which columns of a dataset a model wants."""
    model = bench.build("Llama")
    before = inspect.signature(model.forward)
    bench.fuse(model, linear_cross_entropy=True)
    assert inspect.signature(model.forward) == before
    assert "input_ids" in before.parameters


@pytest.mark.usefixtures("fused_loss")
def test_logits_are_there_where_they_are_wanted(bench: Any) -> None:
    model = bench.build("Llama")
    tokens = torch.randint(3, 160, (2, 7), generator=torch.Generator().manual_seed(2))
    expected = model(input_ids=tokens, labels=tokens)
    bench.fuse(model)
    assert model(input_ids=tokens, labels=tokens).logits is None
    assert torch.allclose(model(input_ids=tokens).logits, expected.logits, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(
            model(input_ids=tokens, labels=tokens).logits, expected.logits, atol=1e-6
        )
    evaluated = model.train(False)(input_ids=tokens, labels=tokens)
    assert torch.allclose(evaluated.logits, expected.logits, atol=1e-6)
    assert isinstance(model(input_ids=tokens, return_dict=False), tuple)
    assert isinstance(model.train()(input_ids=tokens, labels=tokens, return_dict=False), tuple)


@pytest.mark.usefixtures("fused_loss")
@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Mixtral", "GPTBigCode"])
def test_an_adapted_model_keeps_its_loss_and_gradients(family: str, bench: Any) -> None:
    model = adapted(bench, family, ["c_attn"] if family == "GPTBigCode" else ["q_proj", "v_proj"])
    expected = bench.step(model)
    fused = bench.fuse(model, lora=False)
    equal(bench.step(model), expected, bench)
    assert "linear_cross_entropy" in fused.evidence()["parts"]


@pytest.mark.usefixtures("fused_loss")
def test_norms_and_heads_that_train_beside_adapters_are_replaced_too(bench: Any) -> None:
    """PEFT keeps two copies of what `modules_to_save` names; the one that trains counts."""
    configuration = LoraConfig(
        r=4, target_modules=["q_proj"], modules_to_save=["lm_head", "input_layernorm"]
    )
    model = get_peft_model(bench.build("Llama"), configuration).train()
    expected = bench.step(model)
    fused = bench.fuse(model, lora=False)
    equal(bench.step(model), expected, bench)
    assert any("lm_head" in name for name in expected[1])
    assert fused.evidence()["parts"]["linear_cross_entropy"]["replaced"] == 1


@pytest.mark.usefixtures("fused_loss")
def test_an_adapted_output_projection_is_left_alone_or_refused(bench: Any) -> None:
    model = adapted(bench, "Llama", ["q_proj", "lm_head"])
    expected = bench.step(model)
    fused = bench.fuse(model, lora=False)
    equal(bench.step(model), expected, bench)
    assert "not a plain linear" in fused.evidence()["left_out"]["linear_cross_entropy"]
    fused.undo()
    with pytest.raises(PluginError, match=r"linear_cross_entropy: .* not a plain linear"):
        bench.fuse(model, linear_cross_entropy=True)


@pytest.mark.usefixtures("fused_loss")
def test_a_loss_of_somebody_s_own_is_left_alone(bench: Any) -> None:
    def mine(logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        return logits.float().square().mean()

    model = bench.build("Llama")
    model.loss_function = mine
    fused = bench.fuse(model)
    assert "mine" in fused.evidence()["left_out"]["linear_cross_entropy"]
    assert bench.step(model)[0] < 1


@pytest.mark.usefixtures("fused_loss")
def test_where_only_the_output_projection_trains_it_gets_its_gradient(bench: Any) -> None:
    model = bench.build("Llama", tie_word_embeddings=False)
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    expected = bench.step(model)
    bench.fuse(model)
    equal(bench.step(model), expected, bench)
    assert set(expected[1]) == {"lm_head.weight"}


def test_a_tied_projection_gets_both_its_gradients(bench: Any) -> None:
    model = bench.build("Llama", tie_word_embeddings=True)
    expected = bench.step(model)
    bench.fuse(model)
    equal(bench.step(model), expected, bench)


def test_an_unknown_model_is_refused(bench: Any) -> None:
    with pytest.raises(PluginError, match="no rules for Linear"):
        bench.fuse(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("scope", ["block", "model"])
def test_compiled_after_fusing_it_is_one_graph(scope: str, bench: Any) -> None:
    """By `aot_eager`, which captures forward and backward as inductor gets them."""
    model = bench.build("Llama", num_hidden_layers=3)
    expected = bench.step(model, num_items_in_batch=17)
    bench.fuse(model)
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    for module in model.model.layers if scope == "block" else [model]:
        module.compile(backend="aot_eager", fullgraph=True)
    try:
        equal(bench.step(model, num_items_in_batch=17), expected, bench)
        assert counters["stats"]["unique_graphs"] == 1
    finally:
        torch._dynamo.reset()
