"""Fused LoRA in whole models, against PEFT: loss, gradients, stored tensors and undo."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.impl.lora import fuse_lora, is_gated
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers.models.falcon_h1.modeling_falcon_h1 import FalconH1MLP
from transformers.models.gemma.modeling_gemma import GemmaMLP
from transformers.models.llama.modeling_llama import LlamaMLP

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # PEFT asks transformers by a name that is being replaced, and so does core.
    pytest.mark.filterwarnings("ignore:`.*gradient_checkpointing.*`:FutureWarning"),
    # Dynamo makes a function to trace with, and looks at inputs of what follows a graph break.
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
ALL = (*ATTENTION, *MLP)

TIGHT = {torch.float64: 1e-12, torch.float32: 2e-5}
"""Maximum distance of two gradients, relative to their norm."""


@pytest.fixture
def adapted(bench) -> Callable[..., Any]:
    """Return a small model with nonzero adapters."""

    def make(
        family: str = "Llama",
        targets: tuple[str, ...] = ALL,
        dtype: torch.dtype = torch.float64,
        changes: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        base = bench.build(family, dtype, **(changes or {}))
        config = {"r": 3, "lora_alpha": 5, "target_modules": list(targets), **settings}
        return nonzero(get_peft_model(base, LoraConfig(**config), autocast_adapter_dtype=False))

    return make


def nonzero(model: Any) -> Any:
    """Draw B at random, with different values for every adapter."""
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.05)
    return model.train()


def pair_of_steps(bench: Any, model: Any, autocast: bool = False) -> list[Any]:
    """Loss and gradients by PEFT, and then fused, from the same random state."""
    found = []
    for fused in (False, True):
        fusion = fuse_lora(model) if fused else None
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            found.append(bench.step(model))
        if fusion is not None:
            fusion.undo()
    return found


def check(bench: Any, model: Any, tolerance: float, **settings: Any) -> None:
    """Check that loss and every gradient are equal."""
    (loss, gradients), (fused_loss, fused_gradients) = pair_of_steps(bench, model, **settings)
    assert gradients
    assert fused_loss == pytest.approx(loss, rel=tolerance)
    assert bench.distance(fused_gradients, gradients) < tolerance


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma", "Granite"])
def test_loss_and_gradients_are_those_of_peft(bench, adapted, family):
    model = adapted(family, lora_dropout=0.2)
    check(bench, model, TIGHT[torch.float64])
    evidence = fuse_lora(model).evidence()
    assert evidence["adapted_layers"] == dict.fromkeys(ALL, 2)
    assert (evidence["gated_mlps"], evidence["groups_of_one_input"]) == (2, 2)
    assert not evidence["left_alone"]


@pytest.mark.parametrize("family, targets", [("Mixtral", ATTENTION), ("GPTBigCode", ("c_attn",))])
def test_models_without_a_gated_mlp_of_linear_layers(bench, adapted, family, targets):
    # Torch multiplies experts in no wider dtype.
    model = adapted(family, targets, torch.float32, lora_dropout=0.2)
    check(bench, model, TIGHT[torch.float32])
    assert fuse_lora(model).evidence()["adapted_layers"] == dict.fromkeys(targets, 2)


@pytest.mark.parametrize(
    "targets",
    [("q_proj", "v_proj"), ("v_proj", "up_proj"), ("o_proj",), ("down_proj",), ("k_proj", *MLP)],
    ids="+".join,
)
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
def test_some_projections_alone(bench, adapted, targets, bias):
    changes = {"attention_bias": bias, "mlp_bias": bias}
    check(bench, adapted("Llama", targets, changes=changes), TIGHT[torch.float64])


def test_ranks_and_scalings_of_their_own(bench, adapted):
    model = adapted(
        rank_pattern={"q_proj": 1, "down_proj": 4},
        alpha_pattern={"v_proj": 1, "up_proj": 20},
        use_rslora=True,
    )
    check(bench, model, TIGHT[torch.float64])


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_checkpointed_blocks(bench, adapted, dropout):
    model = adapted(lora_dropout=dropout)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    check(bench, model, TIGHT[torch.float64])


@pytest.mark.parametrize("adapters", [torch.float32, torch.float64])
def test_selectively_checkpointed_blocks(bench, adapted, adapters):
    operations = torch.ops.aten
    kept = [operations.mm.default, operations.addmm.default]
    contexts = partial(create_selective_checkpoint_contexts, kept)
    model = adapted(lora_dropout=0.3)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data = parameter.data.to(adapters)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    check(bench, model, {**TIGHT, torch.float32: 1e-6}[adapters])


def test_replicas(bench, adapted, tmp_path):
    distributed = torch.distributed
    model = adapted(lora_dropout=0.2)
    torch.manual_seed(3)
    loss, gradients = bench.step(model)
    fuse_lora(model)
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        replica = nn.parallel.DistributedDataParallel(model)
        torch.manual_seed(3)
        found, others = bench.step(replica)
    finally:
        distributed.destroy_process_group()
    assert found == pytest.approx(loss, rel=1e-12)
    named = {name.removeprefix("module."): gradient for name, gradient in others.items()}
    assert bench.distance(named, gradients) < TIGHT[torch.float64]


def test_checkpointing_does_not_compute_the_last_product_again(bench, adapted):
    model = adapted(changes={"num_hidden_layers": 1})
    model.gradient_checkpointing_enable({"use_reentrant": False})
    fuse_lora(model)
    products = []
    kinds = torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.addmm_.default

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function in kinds:
                products.append(tuple(args[-1].shape))
            return function(*args, **(kwargs or {}))

    with Seen():
        bench.step(model)
    gate, down = (48, 80), (80, 48)
    # Gate and up in both forwards, down in the first one; transposed all three in the backward.
    assert products.count(gate) == 2 + 2 + 1
    assert products.count(down) == 1 + 2


def test_micro_batches_accumulate(bench, adapted):
    model = adapted(lora_dropout=0.2)
    expected, found = [], []
    for fused, gradients in ((False, expected), (True, found)):
        fusion = fuse_lora(model) if fused else None
        torch.manual_seed(3)
        model.zero_grad()
        tokens = torch.arange(3, 29).view(2, 13)
        (sum(model(input_ids=tokens + n, labels=tokens).loss for n in range(2))).backward()
        model(input_ids=tokens, labels=tokens).loss.backward()
        gradients.append(
            {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}
        )
        if fusion is not None:
            fusion.undo()
    assert bench.distance(found[0], expected[0]) < TIGHT[torch.float64]


def away(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Mean distance of gradients, relative to each gradient's norm."""
    every = [(found[name].to(g.dtype) - g).norm() / g.norm() for name, g in exact.items()]
    return float(torch.stack(every).mean())


@pytest.mark.parametrize("adapters", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_bfloat16_is_as_near_to_float64_as_peft_is(bench, adapted, adapters, dropout):
    exact = adapted(lora_dropout=dropout)
    rounded = adapted(dtype=torch.bfloat16, lora_dropout=dropout)
    for name, parameter in rounded.named_parameters():
        if "lora" in name:
            parameter.data = parameter.data.to(adapters)
    with torch.no_grad():
        for one, other in zip(exact.parameters(), rounded.parameters(), strict=True):
            one.copy_(other)
    torch.manual_seed(3)
    _, expected = bench.step(exact)
    (loss, by_peft), (fused_loss, fused) = pair_of_steps(bench, rounded)
    # Rounding differs in order alone: bfloat16 keeps 8 bits.
    assert fused_loss == pytest.approx(loss, rel=2**-7)
    assert away(fused, expected) < 1.1 * away(by_peft, expected)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_autocast_is_as_near_to_float32_as_peft_is(bench, adapted, dropout):
    model = adapted(dtype=torch.float32, lora_dropout=dropout)
    torch.manual_seed(3)
    _, expected = bench.step(model)
    (loss, by_peft), (fused_loss, fused) = pair_of_steps(bench, model, autocast=True)
    assert fused_loss == pytest.approx(loss, rel=2**-7)
    assert away(fused, expected) < 1.1 * away(by_peft, expected)


def kept_bytes(bench: Any, model: Any) -> int:
    """Bytes that a step stores for its backward, each storage once, without weights."""
    known = {tensor.untyped_storage().data_ptr() for tensor in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        bench.step(model)
    return sum(kept.values())


@pytest.mark.parametrize(
    "targets, dropout, ratio",
    [(ALL, 0.0, 0.65), (ALL, 0.1, 0.4), (ATTENTION, 0.0, 0.85), (ATTENTION, 0.1, 0.75)],
)
def test_clearly_less_is_kept(bench, adapted, targets, dropout, ratio):
    model = adapted(dtype=torch.bfloat16, targets=targets, lora_dropout=dropout)
    for name, parameter in model.named_parameters():
        if "lora" in name:
            parameter.data = parameter.data.float()
    by_peft = kept_bytes(bench, model)
    fuse_lora(model)
    assert kept_bytes(bench, model) < ratio * by_peft


def test_undone_the_model_is_peft_s_again(bench, adapted):
    model = adapted()
    before, (loss, gradients) = bench.code_of(model), bench.step(model)
    fusion = fuse_lora(model)
    assert bench.differing(before, bench.code_of(model))
    bench.step(model)
    fusion.undo()
    assert not bench.differing(before, bench.code_of(model))
    again, found = bench.step(model)
    assert again == loss
    assert all(torch.equal(found[name], gradients[name]) for name in gradients)


def test_fused_twice_is_fused_once(bench, adapted):
    model = adapted()
    first, second = fuse_lora(model), fuse_lora(model)
    assert second.evidence()["left_alone"] == {"its forward is replaced already": 14}
    assert not second.fused_mlps
    assert first.fused_mlps == {
        f"base_model.model.model.layers.{number}.mlp" for number in range(2)
    }


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"use_dora": True}, "its adapter is of the form DoraLinearVariant"),
        ({"lora_bias": True}, "its adapter has a bias or is not of linear layers"),
    ],
)
def test_other_forms_are_left_alone_and_counted(bench, adapted, settings, reason):
    model = adapted(changes={"attention_bias": True, "mlp_bias": True}, **settings)
    check(bench, model, TIGHT[torch.float64])
    fusion = fuse_lora(model)
    assert fusion.evidence()["left_alone"] == {reason: 14}
    assert not fusion.fused_mlps


def test_a_base_that_trains_is_left_alone(adapted):
    model = adapted()
    model.base_model.model.model.layers[0].self_attn.q_proj.base_layer.requires_grad_(True)
    evidence = fuse_lora(model).evidence()
    assert evidence["left_alone"] == {"the base trains": 1}
    assert evidence["adapted_layers"]["q_proj"] == 1


def test_an_adapter_that_is_switched_off_afterwards_is_off(bench, adapted):
    model = adapted()
    tokens = torch.arange(3, 16)[None]
    with model.disable_adapter():
        expected = model(input_ids=tokens).logits
    fuse_lora(model)
    with model.disable_adapter():
        found = model(input_ids=tokens).logits
    assert torch.equal(found, expected)
    assert not torch.allclose(model(input_ids=tokens).logits, expected)


def test_another_adapter_that_is_activated_afterwards_is_used(bench, adapted):
    model = adapted()
    model.add_adapter("other", LoraConfig(r=2, target_modules=list(ALL)))
    nonzero(model)
    fusion = fuse_lora(model)
    model.set_adapter("other")
    loss, gradients = bench.step(model)
    fusion.undo()
    expected, others = bench.step(model)
    assert loss == expected
    assert bench.distance(gradients, others) == 0


def test_evaluation_is_peft_s(adapted):
    model = adapted()
    tokens = torch.arange(3, 16)[None]
    with torch.no_grad():
        expected = model.train(False)(input_ids=tokens).logits
        fuse_lora(model)
        assert torch.equal(model(input_ids=tokens).logits, expected)


class Attention(nn.Module):
    """Three projections, called in different ways."""

    def __init__(self, way: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(8, 6, dtype=torch.float64) for _ in range(3)
        )
        self.way = way

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.way(self, hidden)


def changes_in_place(layer: Any, hidden: torch.Tensor) -> torch.Tensor:
    hidden = hidden + 1
    query = layer.q_proj(hidden).detach()
    hidden = hidden.detach().add_(1) if hidden.requires_grad else hidden.add_(1)
    return query * layer.k_proj(hidden) + layer.v_proj(hidden)


WAYS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "usual": lambda layer, x: layer.q_proj(x) * layer.k_proj(x) + layer.v_proj(x),
    "crossed": lambda layer, x: layer.q_proj(x) * layer.k_proj(2 * x) + layer.v_proj(3 * x),
    "backwards": lambda layer, x: layer.v_proj(x) * layer.k_proj(x) + layer.q_proj(x),
    "query alone": lambda layer, x: layer.q_proj(x).square(),
    "key forgotten": lambda layer, x: layer.q_proj(x) * layer.v_proj(x),
    "twice": lambda layer, x: layer.q_proj(x) * layer.k_proj(x) * layer.k_proj(x) + layer.v_proj(x),
    "changed in place": changes_in_place,
}


@pytest.fixture
def attention() -> Callable[..., tuple[Any, torch.Tensor]]:
    """Make an adapted attention, and an input."""

    def make(way: str, **settings: Any) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(0)
        config = LoraConfig(r=2, target_modules=list(ATTENTION[:3]), **settings)
        model = nonzero(get_peft_model(Attention(WAYS[way]), config, autocast_adapter_dtype=False))
        return model.double(), torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)

    return make


def gradients_of(model: Any, inputs: torch.Tensor, steps: int = 2) -> list[torch.Tensor]:
    """Gradients of the inputs and of what trains, of several steps from one random state."""
    torch.manual_seed(4)
    wanted = [inputs, *[p for p in model.parameters() if p.requires_grad]]
    found: list[torch.Tensor] = []
    for _ in range(steps):
        answer = model(inputs).square().sum()
        every = torch.autograd.grad(answer, wanted, allow_unused=True, materialize_grads=True)
        found += [answer.detach(), *every]
    return found


@pytest.mark.parametrize(
    "way, apart",
    [
        ("usual", 0),
        ("crossed", 1),
        ("backwards", 1),
        ("query alone", 1),
        ("key forgotten", 1),
        ("changed in place", 1),
    ],
)
def test_however_the_projections_are_called(attention, way, apart):
    model, inputs = attention(way)
    expected = gradients_of(model, inputs, 3)
    fusion = fuse_lora(model)
    torch.testing.assert_close(gradients_of(model, inputs, 3), expected)
    assert fusion.evidence()["groups_computed_apart"] == apart


@pytest.mark.parametrize("way", ["usual", "twice"])
def test_hooks_are_called_with_what_peft_s_layers_see(attention, way):
    def watched(model: Any) -> list[torch.Tensor]:
        seen: list[torch.Tensor] = []
        layers = model.base_model.model
        handles = [
            layers.q_proj.register_forward_pre_hook(lambda layer, given: (given[0] * 2,)),
            layers.k_proj.register_forward_hook(lambda layer, given, answer: answer + 1),
            layers.v_proj.register_full_backward_hook(lambda layer, *all: seen.append(all[1][0])),
            layers.v_proj.lora_A.register_forward_hook(lambda *all: seen.append(all[2])),
            layers.k_proj.base_layer.register_forward_hook(lambda *all: seen.append(all[2])),
        ]
        found = gradients_of(model, inputs)
        for handle in handles:
            handle.remove()
        return [*found, *seen]

    model, inputs = attention(way)
    expected = watched(model)
    fuse_lora(model)
    torch.testing.assert_close(watched(model), expected)


@pytest.mark.parametrize("way", ["usual", "crossed"])
def test_compiled_projections(attention, way):
    # A group that is given up has drawn for nothing, once.
    model, inputs = attention(way, lora_dropout=0.3 if way == "usual" else 0.0)
    expected = gradients_of(model, inputs, 3)
    fuse_lora(model)
    model.base_model.model.compile(backend="aot_eager")
    torch.testing.assert_close(gradients_of(model, inputs, 3), expected)


def test_a_compiled_block(bench, adapted):
    model = adapted(changes={"num_hidden_layers": 1})
    torch.manual_seed(3)
    loss, gradients = bench.step(model)
    fuse_lora(model)
    model.base_model.model.model.layers[0].compile(backend="aot_eager", fullgraph=True)
    torch.manual_seed(3)
    found, others = bench.step(model)
    assert found == pytest.approx(loss, rel=1e-12)
    assert bench.distance(others, gradients) < TIGHT[torch.float64]


@pytest.mark.parametrize(
    "targets", [pytest.param(("q_proj", "v_proj"), marks=pytest.mark.release), ALL]
)
def test_blocks_that_are_compiled_share_their_graphs(bench, adapted, targets):
    """The first block's input needs no gradient; whatever else differs would compile each anew."""
    model = adapted(targets=targets, changes={"num_hidden_layers": 4})
    fuse_lora(model)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    for block in model.base_model.model.model.layers:
        block.compile(backend="eager", fullgraph=True)
    for _ in range(2):
        bench.step(model)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_a_hook_in_an_mlp_is_called(bench, adapted):
    model = adapted()
    fuse_lora(model)
    seen: list[Any] = []
    mlp = model.base_model.model.model.layers[0].mlp
    handle = mlp.down_proj.register_forward_hook(lambda *_: seen.append(1))
    with_hook = bench.step(model)[1]
    handle.remove()
    assert len(seen) == 1
    assert bench.distance(with_hook, bench.step(model)[1]) < TIGHT[torch.float64]
    assert len(seen) == 1


def test_a_copy_of_a_fused_model_computes_with_its_own_weights(bench, adapted):
    model = adapted()
    fuse_lora(model)
    loss, _ = bench.step(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in copied.named_parameters():
            if "lora_B" in name:
                parameter.zero_()
    assert bench.step(copied)[0] != pytest.approx(loss, rel=1e-6)
    assert bench.step(model)[0] == loss


@pytest.mark.parametrize("kind, gated", [(LlamaMLP, True), (GemmaMLP, True), (FalconH1MLP, False)])
def test_a_gated_mlp_is_known_by_what_it_computes(kind, gated):
    assert is_gated(kind) is gated
