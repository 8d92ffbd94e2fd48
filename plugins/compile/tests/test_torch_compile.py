"""torch-compile: equal loss, counted graphs, clean undo, and reasons for refusals."""

import inspect
import json
import os
from types import MethodType

import pytest
import torch
from accel_bench_compile import TorchCompile
from accel_bench_compile.impl import repeated_blocks
from pydantic import ValidationError
from torch import nn

from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.errors import PluginError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing
from accel_bench.scenario.models import StackEntry
from accel_bench.testing import check_plugin, close_run, evidence_of

LAYERS = 2

# What torch and peft say of themselves while they import and trace is not ours to mend.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]


def tiny_llama(layers: int = LAYERS) -> nn.Module:
    """A llama of a few small blocks, in training mode, with the same weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def train(model: nn.Module, steps: int = 3) -> list[float]:
    """Losses of a few optimizer steps on one fixed batch."""
    tokens = torch.arange(32).reshape(2, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("scope, modules", [("block", LAYERS), ("model", 1)])
def test_the_loss_is_that_of_eager_and_one_graph_serves_all_blocks(compiled, scope, modules):
    model = tiny_llama()
    _, run = compiled(model, backend="aot_eager", scope=scope)
    assert train(model) == pytest.approx(train(tiny_llama()), rel=TorchCompile.loss_tolerance)
    evidence = evidence_of(run)
    assert json.loads(json.dumps(evidence)) == evidence
    assert (evidence["compiled_modules"], evidence["graphs"]) == (modules, 1)
    assert (evidence["graph_breaks"], evidence["recompiles"]) == (0, 0)
    assert evidence["uncompiled_frames"] == 0
    assert evidence["compile_seconds"] > 0
    assert evidence["cache"] is None


@pytest.mark.parametrize("scope", ["block", pytest.param("model", marks=pytest.mark.release)])
def test_a_checkpointed_model_is_compiled_and_still_learns_the_same(compiled, scope):
    checkpointed, plain = tiny_llama(), tiny_llama()
    for model in (checkpointed, plain):
        enable_gradient_checkpointing(model)
    _, run = compiled(checkpointed, backend="aot_eager", scope=scope)
    assert train(checkpointed) == pytest.approx(train(plain), rel=1e-3)
    assert evidence_of(run)["graphs"] == 1


def test_under_lora_the_base_blocks_are_compiled(compiled):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    _, run = compiled(model, backend="aot_eager")
    train(model)
    evidence = evidence_of(run)
    assert evidence["module_class"] == "LlamaDecoderLayer"
    # The first block's input needs no gradient and that of the others does: two graphs, not three.
    assert (evidence["graphs"], evidence["recompiles"]) == (2, 1)
    assert "requires_grad" in evidence["recompile_reasons"][0]


def test_blocks_that_the_compiler_gave_up_on_are_counted(compiled):
    model = ManyWidths()
    _, run = compiled(model, backend="eager", dynamic=False)
    model(torch.ones(2, 4))
    evidence = evidence_of(run)
    assert evidence["uncompiled_frames"] > 0
    assert "recompile limit" in evidence["graph_break_reasons"][0]
    assert evidence["summary"].endswith(f"left uncompiled {evidence['uncompiled_frames']}")


def test_a_graph_break_is_counted_and_its_reason_kept(compiled):
    model = Breaking()
    _, run = compiled(model, backend="eager")
    model(torch.ones(2, 4))
    evidence = evidence_of(run)
    assert evidence["graph_breaks"] > 0
    assert "branching" in evidence["graph_break_reasons"][0]


def test_with_fullgraph_a_graph_break_is_an_error(compiled):
    model = Breaking()
    compiled(model, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        model(torch.ones(2, 4))


def test_closing_undoes_the_compilation_and_the_environment(bench):
    before = dict(os.environ)
    model = tiny_llama()
    plugin, run = bench.plugin(), bench.run(model)
    plugin.prepare_process(run)
    plugin.compile_model(run)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(run.cache_folder / "inductor"))
    assert all(block._compiled_call_impl is not None for block in model.model.layers)
    close_run(run)
    assert dict(os.environ) == before
    assert all(module._compiled_call_impl is None for module in model.modules())


def test_only_inductor_asks_for_a_rehearsal(bench):
    for backend, wanted in (("inductor", True), ("eager", False)):
        run = bench.run()
        bench.plugin(backend=backend).prepare_experiment(run)
        assert run.rehearsal is wanted


def test_without_a_c_compiler_inductor_says_what_to_install(bench):
    experiment = bench.run().experiment
    reasons = list(bench.plugin().check_scenario(experiment, bench.machine()))
    assert any("needs a C compiler" in reason and "gcc" in reason for reason in reasons)
    assert list(bench.plugin(backend="eager").check_scenario(experiment, bench.machine())) == []


def test_on_a_cpu_inductor_also_needs_the_cpp_compiler_that_it_calls(bench, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    machine = bench.machine(c_compiler="/usr/bin/cc")
    reasons = list(bench.plugin().check_scenario(bench.run().experiment, machine))
    assert any("C++ compiler" in reason for reason in reasons)


def test_a_model_without_blocks_is_refused_with_the_way_out():
    with pytest.raises(PluginError, match="scope: model"):
        repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.ReLU(), nn.Tanh()])))


def test_a_backend_that_torch_does_not_know_is_refused_with_the_nearest_one(compiled):
    with pytest.raises(PluginError, match="did you mean 'eager_noexcept'"):
        compiled(tiny_llama(), backend="eager_noexept")


@pytest.mark.parametrize(
    "options",
    [{"scope": "layer"}, {"fullgraph": 1}, {"mod": "default"}, {"mode": "fast"}],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        TorchCompile.Options(**options)


@pytest.mark.parametrize(
    "name, options",
    [
        ("torch-compile", {"scope": "block"}),
        ("torch-compile-model", {"scope": "model"}),
        ("torch-compile-max-autotune", {"mode": "max-autotune"}),
        ("torch-compile-cudagraphs", {"mode": "reduce-overhead"}),
        ("torch-compile-cold", {"cache": "cold"}),
        ("torch-compile-thunder", {"backend": "thunder"}),
    ],
)
def test_its_stacks_are_found_and_valid(name, options):
    data = load_file(find_presets("stacks")[name]).data
    entry = StackEntry.model_validate_json(json.dumps(data))
    assert [(use.use, use.options) for use in entry.use] == [("torch-compile", options)]
    assert TorchCompile.Options(**options).model_dump(include=set(options)) == options


@pytest.mark.release
def test_inductor_gives_the_loss_of_an_eager_llama(compiled):
    """The kernels of its blocks are many: compiling them takes most of a minute.

    The loss of smaller blocks is compared in test_cache.py.
    """
    model = tiny_llama()
    _, run = compiled(model)
    assert train(model) == pytest.approx(train(tiny_llama()), rel=1e-3)
    assert evidence_of(run)["graphs"] == 1


@pytest.mark.release
def test_compiled_whole_lora_with_checkpointing_breaks_and_that_is_seen(compiled):
    from peft import LoraConfig, get_peft_model

    def adapted():
        model = get_peft_model(tiny_llama(1), LoraConfig(r=2, target_modules=["q_proj"]))
        enable_gradient_checkpointing(model)
        return model

    model = adapted()
    _, run = compiled(model, backend="eager", scope="model")
    assert train(model) == pytest.approx(train(adapted()), rel=1e-3)
    evidence = evidence_of(run)
    assert evidence["module_class"] == "PeftModel"
    assert evidence["graph_breaks"] > 0
    assert evidence["uncompiled_frames"] > 0
    assert "requires_grad_()" in "".join(evidence["graph_break_reasons"])


def test_blocks_whose_children_have_forwards_of_their_own_share_one_graph(compiled):
    model = Deep(10)
    for layer in model.layers:
        layer.child.forward = MethodType(doubled, layer.child)
    _, run = compiled(model, backend="eager")
    assert model(torch.ones(2)).tolist() == [2.0**10] * 2
    evidence = evidence_of(run)
    assert (evidence["compiled_modules"], evidence["graphs"]) == (10, 1)
    assert (evidence["recompiles"], evidence["uncompiled_frames"]) == (0, 0)


def test_with_a_higher_limit_blocks_that_differ_are_all_compiled(compiled):
    model = ManyWidths()
    if "recompile_limit" not in inspect.signature(torch.compile).parameters:
        with pytest.raises(PluginError, match="takes no recompile_limit"):
            compiled(model, backend="eager", dynamic=False, recompile_limit=12)
        return
    _, run = compiled(model, backend="eager", dynamic=False, recompile_limit=12)
    model(torch.ones(2, 4))
    evidence = evidence_of(run)
    assert (evidence["graphs"], evidence["uncompiled_frames"]) == (12, 0)


@pytest.mark.parametrize("limit_of_all", [256, 5])
def test_blocks_that_fill_a_cache_are_all_compiled(compiled, limit_of_all):
    # Each has its own place there, as each of these has a width of its own.
    model = ManyWidths()
    with torch._dynamo.config.patch(accumulated_recompile_limit=limit_of_all):
        _, run = compiled(model, mode="inference", backend="eager", dynamic=False)
        model(torch.ones(2, 4))
    evidence = evidence_of(run)
    every = "recompile_limit" in inspect.signature(torch.compile).parameters
    assert (evidence["uncompiled_frames"] == 0) is every


@pytest.mark.parametrize("dynamic, recompiles", [(True, 0), (None, 1)])
def test_batches_of_any_length_are_compiled_once_when_shapes_may_vary(
    bench, compiled, dynamic, recompiles
):
    model = bench.blocks(Doubling(), Doubling())
    _, run = compiled(model, backend="eager", dynamic=dynamic)
    for length in (5, 7, 11, 13):
        model(torch.ones(1, length))
    evidence = evidence_of(run)
    assert (evidence["recompiles"], evidence["uncompiled_frames"]) == (recompiles, 0)


@pytest.mark.parametrize(
    "given, said",
    [
        ({"max_autotun": True}, "did you mean 'max_autotune'"),
        ({"qqq": 1}, "torch._inductor.config has them all"),
        ({"max_autotune": 1}, "should be bool"),
    ],
)
def test_an_option_that_inductor_does_not_take_is_refused(compiled, given, said):
    with pytest.raises(PluginError, match=said):
        compiled(tiny_llama(), inductor_options=given)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"backend": "inductr"}, "did you mean 'inductor'"),
        ({"backend": "eager", "mode": "max-autotune"}, "belongs to inductor"),
        ({"backend": "eager", "inductor_options": {"max_autotune": True}}, "belong to inductor"),
        ({"mode": "default", "inductor_options": {"max_autotune": True}}, "give one of them"),
        ({"backend": "eager", "cache": "cold"}, "inductor's cache"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, said):
    with pytest.raises(ValidationError, match=said):
        TorchCompile.Options(**options)


class Block(nn.Module):
    """A block whose `width` is a plain number, which the compiler bakes into its code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.width


class ManyWidths(nn.Module):
    """More different blocks than torch's limit of compilations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for width in range(12))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


class Doubling(nn.Module):
    """A block of any length."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * 2


class Parent(nn.Module):
    """A block with a child, whose forward does nothing until it is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Identity()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.child(values)


class Deep(nn.Module):
    """More `Parent` blocks than torch's limit of compilations."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Parent() for _ in range(blocks))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


def doubled(self: nn.Module, values: torch.Tensor) -> torch.Tensor:
    """A forward that a plugin binds to a module."""
    return values * 2


class Reading(nn.Module):
    """A block with a condition on a tensor's value, which breaks the graph."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * 2 if values.sum() > 0 else values


class Breaking(nn.Module):
    """Two blocks that break the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Reading(), Reading()])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


@pytest.mark.parametrize(
    ("backend", "archs"),
    [("eager", ()), pytest.param("aot_eager", None, marks=pytest.mark.release)],
)
def test_it_keeps_the_contract(backend, archs):
    report = check_plugin("torch-compile", options={"backend": backend}, archs=archs)
    said = {(clause.name, clause.sentence) for clause in report.proven}
    assert ("dtypes", "bfloat16") in said
    assert archs == () or ("architectures", "GPT2LMHeadModel") in said
