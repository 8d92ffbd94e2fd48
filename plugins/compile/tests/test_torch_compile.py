"""torch-compile: same loss, counted graphs, nothing left behind, a reason where it cannot run."""

import json
import os
from pathlib import Path

import pytest
import torch
from accel_bench_compile import TorchCompile
from accel_bench_compile.impl import repeated_blocks
from pydantic import ValidationError
from torch import nn

from accel_bench import Device, Experiment, Machine, Run, Scenario
from accel_bench.errors import PluginError
from accel_bench.scenario.load import load_file
from accel_bench.scenario.models import Stack, StackEntry
from accel_bench.scenario.samples import find_samples
from accel_bench.testing import check_plugin

LAYERS = 3

# What torch and peft say of themselves while they import and trace is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]


def tiny_llama() -> nn.Module:
    """A llama of three small blocks, in training mode, with the same weights each time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def make_run(folder: Path, model: nn.Module | None = None) -> Run:
    """A run of one CPU rank around a model."""
    scenario = Scenario.model_validate_json(json.dumps({"resources": {"device": "cpu"}}))
    experiment = Experiment(id="x", scenario=scenario, stack=Stack(name="s"), identity={})
    return Run(
        experiment=experiment,
        device=Device("cpu"),
        folder=folder,
        cache_folder=folder / "cache",
        model=model,
    )


def make_plugin(**options: object) -> TorchCompile:
    return TorchCompile(TorchCompile.Options(**options), "torch-compile")


def make_machine(**facts: object) -> Machine:
    """A machine without a GPU and, unless told otherwise, without a compiler."""
    return Machine(
        host="h",
        system="s",
        processor="p",
        cores=2,
        memory_bytes=1,
        python="3",
        versions={},
        **facts,
    )


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


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    """Torch itself sets a cache folder when it is first used without one; start without it."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def compiled(tmp_path):
    """Compile a model with a plugin; close it when the test has ended."""
    opened = []

    def open_run(model: nn.Module, **options: object) -> tuple[TorchCompile, Run]:
        plugin, run = make_plugin(**options), make_run(tmp_path, model)
        opened.append((plugin, run))
        plugin.prepare_process(run)
        plugin.compile_model(run)
        return plugin, run

    yield open_run
    for plugin, run in opened:
        plugin.close_run(run)


@pytest.mark.parametrize("scope, modules", [("block", LAYERS), ("model", 1)])
def test_the_loss_is_that_of_eager_and_one_graph_serves_all_blocks(compiled, scope, modules):
    model = tiny_llama()
    plugin, run = compiled(model, backend="aot_eager", scope=scope)
    assert train(model) == pytest.approx(train(tiny_llama()), rel=TorchCompile.loss_tolerance)
    evidence = plugin.report_evidence(run)
    assert json.loads(json.dumps(evidence)) == evidence
    assert (evidence["compiled_modules"], evidence["graphs"]) == (modules, 1)
    assert (evidence["graph_breaks"], evidence["recompiles"]) == (0, 0)
    assert evidence["uncompiled_frames"] == 0
    assert evidence["compile_seconds"] > 0
    assert evidence["cache"] is None


@pytest.mark.parametrize("scope", ["block", "model"])
def test_a_checkpointed_model_is_compiled_and_still_learns_the_same(compiled, scope):
    checkpointed, plain = tiny_llama(), tiny_llama()
    for model in (checkpointed, plain):
        model.activation_checkpointing_enable({"use_reentrant": False})
    plugin, run = compiled(checkpointed, backend="aot_eager", scope=scope)
    assert train(checkpointed) == pytest.approx(train(plain), rel=1e-3)
    assert plugin.report_evidence(run)["graphs"] == 1


def test_under_lora_the_base_blocks_are_compiled(compiled):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_llama(), LoraConfig(r=2, target_modules=["q_proj"]))
    plugin, run = compiled(model, backend="aot_eager")
    train(model)
    evidence = plugin.report_evidence(run)
    assert evidence["module_class"] == "LlamaDecoderLayer"
    # The first block's input needs no gradient and that of the others does: two graphs, not three.
    assert (evidence["graphs"], evidence["recompiles"]) == (2, 1)
    assert "requires_grad" in evidence["recompile_reasons"][0]


def test_blocks_that_the_compiler_gave_up_on_are_counted(compiled):
    model = ManyWidths()
    plugin, run = compiled(model, backend="eager", dynamic=False)
    model(torch.ones(2, 4))
    evidence = plugin.report_evidence(run)
    assert evidence["uncompiled_frames"] > 0
    assert "recompile limit" in evidence["graph_break_reasons"][0]


def test_a_graph_break_is_counted_and_its_reason_kept(compiled):
    model = Breaking()
    plugin, run = compiled(model, backend="eager")
    model(torch.ones(2, 4))
    evidence = plugin.report_evidence(run)
    assert evidence["graph_breaks"] > 0
    assert "branching" in evidence["graph_break_reasons"][0]


def test_with_fullgraph_a_graph_break_is_an_error(compiled):
    model = Breaking()
    compiled(model, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        model(torch.ones(2, 4))


def test_closing_undoes_the_compilation_and_the_environment(tmp_path):
    before = dict(os.environ)
    model = tiny_llama()
    plugin, run = make_plugin(), make_run(tmp_path, model)
    plugin.prepare_process(run)
    plugin.compile_model(run)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(run.cache_folder / "inductor"))
    assert all(block._compiled_call_impl is not None for block in model.model.layers)
    plugin.close_run(run)
    assert dict(os.environ) == before
    assert all(module._compiled_call_impl is None for module in model.modules())
    assert plugin.report_evidence(run) == {}


def test_a_cache_folder_that_the_user_set_is_left_alone_and_said(tmp_path, monkeypatch, compiled):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "something").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    plugin, run = compiled(tiny_llama())
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(folder)
    evidence = plugin.report_evidence(run)
    assert (evidence["cache"], evidence["cache_set_by"]) == ("warm", "environment")


def test_closing_a_run_that_never_began_does_nothing(tmp_path):
    make_plugin().close_run(make_run(tmp_path))


def test_only_inductor_asks_for_a_rehearsal(tmp_path):
    for backend, wanted in (("inductor", True), ("eager", False)):
        run = make_run(tmp_path)
        make_plugin(backend=backend).prepare_experiment(run)
        assert run.rehearsal is wanted


def test_without_a_c_compiler_inductor_says_what_to_install(tmp_path):
    experiment = make_run(tmp_path).experiment
    reasons = list(make_plugin().check_scenario(experiment, make_machine()))
    assert any("needs a C compiler" in reason and "gcc" in reason for reason in reasons)
    assert list(make_plugin(backend="eager").check_scenario(experiment, make_machine())) == []


def test_on_a_cpu_inductor_also_needs_the_cpp_compiler_that_it_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    machine = make_machine(c_compiler="/usr/bin/cc")
    reasons = list(make_plugin().check_scenario(make_run(tmp_path).experiment, machine))
    assert any("C++ compiler" in reason for reason in reasons)


def test_a_model_without_blocks_is_refused_with_the_way_out():
    with pytest.raises(PluginError, match="scope: model"):
        repeated_blocks(nn.Sequential(nn.Linear(2, 2), nn.ModuleList([nn.ReLU(), nn.Tanh()])))


def test_lists_inside_of_blocks_are_not_taken_for_the_blocks():
    blocks = nn.ModuleList(
        nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(2, 2) for _ in range(9))})
        for _ in range(2)
    )
    assert repeated_blocks(nn.ModuleDict({"layers": blocks})) == list(blocks)


def test_an_unknown_backend_is_refused_with_the_nearest_one(compiled):
    with pytest.raises(PluginError, match="did you mean 'inductor'"):
        compiled(tiny_llama(), backend="inducto")


@pytest.mark.parametrize(
    "options",
    [{"scope": "layer"}, {"fullgraph": 1}, {"mod": "default"}, {"mode": "fast"}],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        TorchCompile.Options(**options)


def test_a_mode_is_refused_for_a_backend_that_has_none():
    with pytest.raises(ValidationError, match="belongs to inductor"):
        TorchCompile.Options(backend="eager", mode="max-autotune")


def test_its_stacks_are_found_and_valid():
    found = find_samples("stacks")
    for name, scope in (("torch-compile", "block"), ("torch-compile-model", "model")):
        data = load_file(found[name]).data
        entry = StackEntry.model_validate_json(json.dumps(data))
        assert [(use.use, use.options) for use in entry.use] == [
            ("torch-compile", {"scope": scope})
        ]
        assert TorchCompile.Options(**entry.use[0].options).scope == scope


@pytest.mark.slow
def test_inductor_gives_the_loss_of_eager_and_fills_its_cache(compiled):
    model = tiny_llama()
    plugin, run = compiled(model)
    assert plugin.report_evidence(run)["cache"] == "cold"
    assert train(model) == pytest.approx(train(tiny_llama()), rel=1e-3)
    evidence = plugin.report_evidence(run)
    assert (evidence["graphs"], evidence["graph_cache_hits"]) == (1, 0)
    assert evidence["graph_cache_misses"] == 2
    again, run = compiled(tiny_llama())
    torch.compiler.reset()
    train(run.model)
    evidence = again.report_evidence(run)
    assert evidence["cache"] == "warm"
    assert (evidence["graph_cache_hits"], evidence["graph_cache_misses"]) == (2, 0)


class Block(nn.Module):
    """A block whose `width` is a plain number, which the compiler bakes into its code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values + self.width


class ManyWidths(nn.Module):
    """More different blocks than the compiler compiles before it gives up."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for width in range(12))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


class Reading(nn.Module):
    """A block that reads a number from a tensor in a condition, where a graph has to end."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * 2 if values.sum() > 0 else values


class Breaking(nn.Module):
    """Two such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Reading(), Reading()])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            values = layer(values)
        return values


def test_it_keeps_the_contract():
    report = check_plugin("torch-compile", options={"backend": "aot_eager"})
    said = {(clause.name, clause.sentence) for clause in report.proven}
    assert {("dtypes", "bfloat16"), ("architectures", "GPT2LMHeadModel")} <= said
