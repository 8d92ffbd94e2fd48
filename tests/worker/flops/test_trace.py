"""Workloads of real models against torch's own FLOP counter, and models that are not understood.

The counter runs on meta tensors: nothing is computed, all is counted. It takes no notice of a
causal mask, so our non-causal figure is compared. It takes none of windows either: that model's
windows are taken off before it is compared, and `tests/test_flops.py` holds what a window leaves
against the mask that transformers makes.
"""

from __future__ import annotations

import re
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flop_counting import GPT2, ROTARY, catalog_model, counted_flops, run_of
from torch import nn
from transformers import CONFIG_MAPPING
from transformers.pytorch_utils import Conv1D

from accel_bench import Run
from accel_bench.flops.formulas import hardware_flops, model_flops
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.job import Job
from accel_bench.modeling.checkpointing import CheckpointFunction, enable_gradient_checkpointing
from accel_bench.modeling.loading import build_config
from accel_bench.modeling.random_weights import random_model
from accel_bench.result import RankResult
from accel_bench.scenario.uses import ModelUse
from accel_bench.worker.flops.trace import read_workload
from accel_bench.worker.record import RankRecord, rank_result
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.recomputation import read_checkpointing
from accel_bench.worker.verify.verification import Verification

LENGTH = 48
BIGCODE = {**GPT2, "n_inner": 256}
OPT = {
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "word_embed_proj_dim": 64,
    "ffn_dim": 256,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
GRANITE = {**ROTARY, "pad_token_id": 0}
LAYER_1 = "model.layers.1"

CASES: dict[str, dict[str, Any]] = {
    "gpt2: fused, transposed, tied": {"name": "gpt2", "overrides": GPT2},
    "gpt2, recomputed": {"name": "gpt2", "overrides": GPT2, "checkpointing": True},
    "gpt2, recomputed, nothing after the last matrix": {
        "name": "gpt2",
        "overrides": {**GPT2, "resid_pdrop": 0.0},
        "checkpointing": True,
    },
    "gpt2, LoRA": {"name": "gpt2", "overrides": GPT2, "lora": {"target_modules": ["c_attn"]}},
    "gpt2, LoRA on both c_proj, recomputed": {
        "name": "gpt2",
        "overrides": GPT2,
        "lora": {"target_modules": ["c_proj"]},
        "checkpointing": True,
    },
    "opt": {"name": "opt-125m", "overrides": OPT},
    "opt, recomputed": {"name": "opt-125m", "overrides": OPT, "checkpointing": True},
    "opt, one matrix trains": {
        "name": "opt-125m",
        "overrides": OPT,
        "trained": ["model.decoder.layers.1.fc1"],
    },
    "llama-3: grouped queries": {"name": "llama-3-8b", "overrides": ROTARY},
    "llama-3, heads larger than hidden / heads": {
        "name": "llama-3-8b",
        "overrides": {**ROTARY, "head_dim": 32},
    },
    "llama-3, recomputed": {"name": "llama-3-8b", "overrides": ROTARY, "checkpointing": True},
    "llama-3, LoRA": {"name": "llama-3-8b", "overrides": ROTARY, "lora": {}},
    "llama-3, LoRA on values": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "lora": {"target_modules": ["v_proj"], "dropout": 0.1},
    },
    "llama-3, LoRA everywhere, recomputed": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "lora": {"target_modules": "all-linear"},
        "checkpointing": True,
    },
    "llama-3, LoRA on queries and values, recomputed": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "lora": {},
        "checkpointing": True,
    },
    "llama-3, the last layer and the output train": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "trained": ["model.layers.2", "lm_head"],
    },
    "llama-3, a norm trains": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "trained": [f"{LAYER_1}.post_attention_layernorm"],
    },
    "llama-3, the output trains, recomputed": {
        "name": "llama-3-8b",
        "overrides": ROTARY,
        "trained": ["lm_head"],
        "checkpointing": True,
    },
    "granite: tied": {"name": "granite-3-8b", "overrides": GRANITE},
    "granite, recomputed": {"name": "granite-3-8b", "overrides": GRANITE, "checkpointing": True},
    "granite: experts, tied": {"name": "granite-3-1b-a400m", "overrides": GRANITE},
    "granite, experts, LoRA, recomputed": {
        "name": "granite-3-1b-a400m",
        "overrides": GRANITE,
        "lora": {"target_modules": ["v_proj"]},
        "checkpointing": True,
    },
    "qwen2.5, a bias of the keys trains": {
        "name": "qwen2.5-7b",
        "overrides": ROTARY,
        "trained": [f"{LAYER_1}.self_attn.k_proj.bias"],
    },
    "santacoder: one key head": {"name": "santacoder", "overrides": BIGCODE},
    "santacoder, embeddings train": {
        "name": "santacoder",
        "overrides": BIGCODE,
        "trained": ["transformer.wte"],
    },
    "mixtral: experts": {"name": "mixtral-8x7b", "overrides": ROTARY},
    "mixtral, recomputed": {"name": "mixtral-8x7b", "overrides": ROTARY, "checkpointing": True},
    "mixtral, a router trains": {
        "name": "mixtral-8x7b",
        "overrides": ROTARY,
        "trained": [f"{LAYER_1}.mlp.gate"],
    },
    "mixtral, second matrices of experts train": {
        "name": "mixtral-8x7b",
        "overrides": ROTARY,
        "trained": [f"{LAYER_1}.mlp.experts.down_proj"],
    },
    "mixtral, LoRA, recomputed": {
        "name": "mixtral-8x7b",
        "overrides": ROTARY,
        "lora": {"target_modules": ["q_proj"]},
        "checkpointing": True,
    },
    "mistral: a sliding window": {
        "name": "mistral-7b",
        "overrides": {**ROTARY, "sliding_window": 16},
    },
}


def read(model: Any, folder: Path, /, **scenario: Any) -> Workload:
    found = read_workload(run_of(model, folder, **scenario))
    assert found is not None
    return found


def without_windows(workload: Workload) -> Workload:
    attentions = tuple(a.model_copy(update={"window": None}) for a in workload.attentions)
    return workload.model_copy(update={"attentions": attentions})


@pytest.mark.parametrize("case", CASES)
def test_flops_are_those_that_torch_counts(case: str, tmp_path: Path) -> None:
    model = catalog_model(**CASES[case])
    workload = without_windows(read(model, tmp_path))
    flops = hardware_flops(workload, LENGTH).non_causal
    assert flops == pytest.approx(counted_flops(model, LENGTH), rel=1e-9)


SEEN_BY_DEFAULT = {
    "gpt2, LoRA on both c_proj, recomputed",
    "opt, recomputed",
    "llama-3, LoRA on queries and values, recomputed",
    "granite, experts, LoRA, recomputed",
    "mixtral, recomputed",
}
"""Recomputed cases that differ most; models on the meta device are counted of all of them."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in SEEN_BY_DEFAULT else pytest.mark.release)
        for case in CASES
        if CASES[case].get("checkpointing")
    ],
)
def test_what_the_first_step_shows_of_recomputation_agrees_with_what_is_counted(
    case: str, tmp_path: Path
) -> None:
    model = catalog_model(**CASES[case], device="cpu")
    assert seen_flops(model, tmp_path) == pytest.approx(counted_flops(model, LENGTH), rel=1e-9)


class Doubling(torch.autograd.Function):
    """A product that keeps what its backward needs when it is done, as some kernels do."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(weight)
        return values @ weight.T

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient @ context.saved_tensors[0], None


class KeptAfterwards(nn.Linear):
    """A frozen linear whose kernel is `Doubling`."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, Doubling.apply(values, self.weight))


class KeptBefore(nn.Linear):
    """A frozen linear of an own class that multiplies as torch's does."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(values, self.weight)


@pytest.mark.parametrize("kind, recomputes", [(KeptAfterwards, True), (KeptBefore, False)])
def test_whether_an_unknown_kernel_runs_again_is_seen_in_the_first_step(
    kind: type[nn.Linear], recomputes: bool, tmp_path: Path
) -> None:
    lora = {"target_modules": ["q_proj"]}
    model = catalog_model("llama-3-8b", ROTARY, lora=lora, checkpointing=True, device="cpu")
    for layer in model.base_model.model.model.layers:
        old = layer.mlp.down_proj
        new = kind(old.in_features, old.out_features, bias=False)
        layer.mlp.down_proj = new.requires_grad_(False)
    run = run_of(model, tmp_path)
    assert seen_flops(model, tmp_path, run) == pytest.approx(counted_flops(model, LENGTH), rel=1e-9)
    assert run.recomputes_last_matmul is recomputes


def test_an_mlp_that_says_so_computes_none_of_its_last_part_again(tmp_path: Path) -> None:
    lora = {"target_modules": ["up_proj", "down_proj"]}
    model = catalog_model("llama-3-8b", ROTARY, lora=lora, checkpointing=True, device="cpu")
    for layer in model.base_model.model.model.layers:
        layer.mlp.recomputes_last_matmul = False
    found = read_workload(run_of(model, tmp_path))
    assert found is not None
    last = {m.name: m.recomputed for m in found.matmuls if "down_proj" in m.name}
    rest = {m.name: m.recomputed for m in found.matmuls if "up_proj" in m.name}
    assert len(last) == len(rest) == 3
    assert set(last.values()) == {False}
    assert set(rest.values()) == {True}


class KeepsMatmuls(CheckpointFunction):
    """A function of somebody's own that has attention alone computed again."""

    policy = "attention"

    def __call__(self, function: Any, *args: Any) -> Any:
        return function(*args)

    def recomputes(self, matmuls: int) -> tuple[bool | None, bool | None]:
        assert matmuls == 9
        return False, True


def test_a_checkpoint_function_declares_what_is_computed_again(tmp_path: Path) -> None:
    lora = {"target_modules": ["q_proj"]}
    model = catalog_model("llama-3-8b", ROTARY, lora=lora, checkpointing=True, device="cpu")
    for layer in model.base_model.model.model.layers:
        layer._gradient_checkpointing_func = KeepsMatmuls()
    found = read_workload(run_of(model, tmp_path))
    assert found is not None
    assert {matmul.recomputed for matmul in found.matmuls} == {False}
    assert {attention.recomputed for attention in found.attentions} == {True}
    assert read_checkpointing(model).policy == "attention"


@pytest.mark.parametrize("around", [False, True])
def test_a_compiled_layer_is_computed_again_whole_where_the_checkpoint_stands_around_it(
    tmp_path: Path, around: bool
) -> None:
    """As transformers did it before 5.23."""
    model = catalog_model("llama-3-8b", ROTARY, checkpointing=True, device="cpu")
    for layer in model.model.layers:
        layer.compile(backend="eager")
        if around:
            call = {"__call__": lambda self, *args, **kwargs: None}
            layer.__class__ = type("Around", (type(layer),), call)
    found = read_workload(run_of(model, tmp_path))
    assert found is not None
    last = [m.recomputed for m in found.matmuls if "down_proj" in m.name]
    assert last == [around] * len(last)
    assert last


def test_the_layer_that_is_looked_at_is_one_that_is_computed_again(tmp_path: Path) -> None:
    """Of every other layer, the last one may keep what it has computed."""
    lora = {"target_modules": ["q_proj"]}
    model = catalog_model("llama-3-8b", ROTARY, lora=lora, checkpointing=True, device="cpu")
    for layer in model.base_model.model.model.layers:
        old = layer.mlp.down_proj
        new = KeptAfterwards(old.in_features, old.out_features, bias=False)
        layer.mlp.down_proj = new.requires_grad_(False)
    layer.gradient_checkpointing = False
    run = run_of(model, tmp_path)
    assert seen_flops(model, tmp_path, run) == pytest.approx(counted_flops(model, LENGTH), rel=1e-9)
    assert run.recomputes_last_matmul is True


def seen_flops(model: Any, folder: Path, run: Run | None = None) -> float:
    """FLOPs for a token by the workload that is read after a first pass was looked at."""
    run = run or run_of(model, folder)
    probe = FirstStepProbe(run)
    counted_flops(model, LENGTH)
    probe.remove()
    found = read_workload(run)
    assert found is not None
    return hardware_flops(without_windows(found), LENGTH).non_causal


OTHERS = {
    "cohere": {},
    "gemma2": {"head_dim": 16},
    "gpt_neox": {},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 8, "num_experts_per_tok": 2},
    "phi3": {},
    "qwen2_moe": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3": {"head_dim": 16},
}
"""Architectures outside of the catalog: parallel blocks, norms elsewhere, other names."""


@pytest.mark.parametrize(
    ("trained", "checkpointing"),
    [
        (None, False),
        ("layers.1.", True),
        pytest.param(None, True, marks=pytest.mark.release),
        pytest.param("layers.1.", False, marks=pytest.mark.release),
    ],
)
@pytest.mark.parametrize("kind", OTHERS)
def test_architectures_outside_of_the_catalog_are_counted_as_well(
    kind: str, trained: str | None, checkpointing: bool, tmp_path: Path
) -> None:
    known = CONFIG_MAPPING[kind]().to_dict()
    sizes = {key: value for key, value in GRANITE.items() if key in known}
    config = CONFIG_MAPPING[kind](**sizes, **OTHERS[kind])
    config.use_cache, config._experts_implementation = False, "batched_mm"
    model = random_model(config, torch.float32, "meta", 0, attention="eager")[0].train()
    for name, parameter in model.named_parameters():
        query = re.search(r"q_proj|query_key_value|qkv_proj", name)
        parameter.requires_grad_(trained is None or bool(trained in name and query))
    if checkpointing:
        enable_gradient_checkpointing(model)
    flops = hardware_flops(without_windows(read(model, tmp_path)), LENGTH)
    assert flops.non_causal == pytest.approx(counted_flops(model, LENGTH), rel=1e-9)


def test_llama_2_7b_in_full_size_at_4096_is_counted_to_the_digit(tmp_path: Path) -> None:
    model = catalog_model("llama-2-7b")
    assert counted_flops(model, 4096) == 46_084_915_200
    assert model_flops(read(model, tmp_path), 4096).non_causal == 46_084_915_200


def test_model_flops_are_the_same_whether_activations_are_kept_or_recomputed(
    tmp_path: Path,
) -> None:
    kept, again = (
        read(catalog_model("gpt2", GPT2, checkpointing=checkpointing), tmp_path)
        for checkpointing in (False, True)
    )
    assert model_flops(kept, LENGTH) == model_flops(again, LENGTH)
    assert hardware_flops(kept, LENGTH).causal < hardware_flops(again, LENGTH).causal


def test_the_window_of_a_model_is_read(tmp_path: Path) -> None:
    windowed = read(catalog_model("mistral-7b", {**ROTARY, "sliding_window": 16}), tmp_path)
    assert [(a.window, a.count) for a in windowed.attentions] == [(16, 3)]


def test_layers_before_the_first_that_trains_need_no_gradient(tmp_path: Path) -> None:
    model = catalog_model("llama-3-8b", ROTARY, trained=[f"{LAYER_1}.mlp.up_proj"])
    queries = [m for m in read(model, tmp_path).matmuls if m.name == "layers.self_attn.q_proj"]
    assert [(m.count, m.input_needs_gradient) for m in queries] == [(2, False), (1, True)]


def test_matrices_have_the_dtype_in_which_they_are_multiplied(tmp_path: Path) -> None:
    model = catalog_model("llama-3-8b", ROTARY).to(torch.bfloat16)
    assert {m.dtype for m in read(model, tmp_path).matmuls} == {"bfloat16"}
    stored = catalog_model("llama-3-8b", ROTARY)
    autocast = read(stored, tmp_path, train={"precision": "bf16-autocast"})
    assert {m.dtype for m in autocast.matmuls} == {"bfloat16"}


@pytest.mark.parametrize(
    "experts, dtype", [("eager", "bfloat16"), ("batched_mm", "bfloat16"), ("grouped_mm", "float32")]
)
def test_the_grouped_product_of_experts_does_not_follow_autocast(
    experts: str, dtype: str, tmp_path: Path
) -> None:
    model = catalog_model("mixtral-8x7b", ROTARY)
    model.set_experts_implementation(experts)
    found = read(model, tmp_path, train={"precision": "bf16-autocast"}).matmuls
    assert {m.dtype for m in found if ".experts." in m.name} == {dtype}
    assert {m.dtype for m in found if ".experts." not in m.name} == {"bfloat16"}


class Quantized(nn.Module):
    """A linear module that keeps two values in a byte, as 4-bit libraries do."""

    def __init__(self, columns: int, rows: int) -> None:
        super().__init__()
        self.in_features, self.out_features = columns, rows
        packed = torch.zeros(rows * columns // 2, 1, dtype=torch.uint8)
        self.weight = nn.Parameter(packed, requires_grad=False)


def test_a_quantized_matrix_counts_in_full_and_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict(first=nn.Linear(8, 16), packed=Quantized(16, 32)))
    workload = read(model, tmp_path, model={"dtype": "float16"})
    assert workload.matmuls == (
        Matmul(name="first", rows=16, columns=8, dtype="float32", input_needs_gradient=False),
        Matmul(name="packed", rows=32, columns=16, dtype="float16", trains=False),
    )


def test_experts_that_are_modules_of_their_own_share_the_tokens(tmp_path: Path) -> None:
    model = catalog_model("mixtral-8x7b", ROTARY)
    tensors = model_flops(read(model, tmp_path), LENGTH)
    for layer in model.model.layers:
        experts = [
            nn.ModuleDict(
                {
                    "w1": nn.Linear(64, 176, bias=False, device="meta"),
                    "w2": nn.Linear(176, 64, bias=False, device="meta"),
                    "w3": nn.Linear(64, 176, bias=False, device="meta"),
                }
            )
            for _ in range(8)
        ]
        layer.mlp.experts = nn.ModuleList(experts)
    assert model_flops(read(model, tmp_path), LENGTH) == tensors


def test_an_adapter_that_is_switched_off_is_not_counted(tmp_path: Path) -> None:
    model = catalog_model("llama-3-8b", ROTARY, lora={"target_modules": ["q_proj"]})
    assert any("lora_A" in m.name for m in read(model, tmp_path).matmuls)
    model.base_model.disable_adapter_layers()
    assert not any("lora" in m.name for m in read(model, tmp_path).matmuls)


def test_a_copy_that_peft_trains_beside_an_adapter_counts_once(tmp_path: Path) -> None:
    import peft

    model = catalog_model("llama-3-8b", ROTARY)
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    with warnings.catch_warnings():
        # PEFT asks transformers by a name that is being replaced.
        warnings.simplefilter("ignore", FutureWarning)
        found = read(peft.get_peft_model(model, config), tmp_path)
    output = [m for m in found.matmuls if m.name == "lm_head"]
    assert [(m.rows, m.count, m.trains) for m in output] == [(512, 1, True)]


def adapted_embedding() -> Any:
    return catalog_model("llama-3-8b", ROTARY, lora={"target_modules": ["embed_tokens"]})


def chunked_attention() -> Any:
    model = catalog_model("llama-3-8b", ROTARY)
    model.config.layer_types = ["chunked_attention"] * 3
    return model


def nameless_attention() -> Any:
    model = catalog_model("llama-3-8b", ROTARY)
    del model.model.layers[1].self_attn.k_proj
    return model


def experts_without_a_number() -> Any:
    model = catalog_model("mixtral-8x7b", ROTARY)
    vars(model.config)["num_experts_per_tok"] = None
    return model


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Sequential(nn.Conv1d(4, 4, 3)), r"0 \(Conv1d\) holds weight"),
        (adapted_embedding, "embed_tokens has an adapter that is not known"),
        (chunked_attention, "layer 0 is of type chunked_attention"),
        (nameless_attention, "no attention is known in layer 1"),
        (experts_without_a_number, "not known how many experts a token uses"),
    ],
)
def test_a_model_that_is_not_understood_has_no_workload_and_the_log_says_why(
    make: Any, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of(make(), tmp_path)
    assert read_workload(run) is None
    (message,) = caplog.messages
    assert re.search(reason, message)
    assert run.workload_reason == message


def test_a_plugin_declares_the_workload_of_a_model_that_cannot_be_counted(tmp_path: Path) -> None:
    run = run_of(nn.Sequential(nn.Conv1d(4, 4, 3)), tmp_path)
    run.workload = Workload(matmuls=(Matmul(name="conv", rows=4, columns=12),))
    found = read_workload(run)
    assert found is not None
    assert [(one.name, one.dtype) for one in found.matmuls] == [("conv", "float32")]
    assert run.workload_reason.startswith("a plugin declares what cannot be counted: 0 (Conv1d)")


def test_a_declaration_never_replaces_what_is_counted(tmp_path: Path) -> None:
    run = run_of(nn.Sequential(OrderedDict(wide=nn.Linear(8, 32))), tmp_path)
    run.workload = Workload(matmuls=(Matmul(name="more", rows=10**6, columns=10**6),))
    found = read_workload(run)
    assert found is not None
    assert [one.name for one in found.matmuls] == ["wide"]
    assert run.workload_reason == ""


def test_a_transposed_matrix_has_its_rows_and_columns_the_right_way_round(tmp_path: Path) -> None:
    model = nn.Sequential(OrderedDict(wide=Conv1D(32, 8)))
    (matrix,) = read(model, tmp_path).matmuls
    assert (matrix.rows, matrix.columns) == (32, 8)


def test_a_rank_writes_down_the_workload_of_the_model_that_trained(tmp_path: Path) -> None:
    config = build_config(ModelUse(overrides={"num_hidden_layers": 1}))
    model = random_model(config, torch.float32, "cpu", 0)[0].train()
    run = run_of(model, tmp_path, resources={"device": "cpu"})
    run.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    record = RankRecord()
    verification = Verification(
        run,
        record,
        Job(run_id="one", experiment=run.experiment, folder=str(tmp_path), cache_folder=""),
    )
    tokens = torch.arange(16)[None]
    model(input_ids=tokens, labels=tokens).loss.backward()
    run.optimizer.step()
    verification.before_window(None, None)
    written = rank_result(run, record, None, "").model_dump_json()
    assert RankResult.model_validate_json(written).workload == read(model, tmp_path)
