"""Every included benchmark at its tiny size on a CPU: against float64, with FLOPs and bytes."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest
import torch
import torch.nn.attention.varlen as varlen_module
from accel_bench_op import ComputeType, find_benchmarks, find_executors
from accel_bench_op.benchmarks.attention import attention_flops
from accel_bench_op.benchmarks.impl.attention import one_by_one, varlen
from accel_bench_op.benchmarks.shapes import SHAPES, find_shape
from accel_bench_op.cell_impl import build_cell
from packaging.version import Version
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from accel_bench.errors import AccelBenchError, install_command

BENCHMARKS = {
    name: kind
    for name, kind in find_benchmarks().items()
    if kind.__module__.startswith("accel_bench_op.benchmarks.")
}

QUANTIZED = {"lora_nf4_linear", "lora_int8_linear", "lora_gptq_linear"}
"""Benchmarks tested with their libraries: plugins/fused-kernels/tests/test_executors.py."""

HERE = sorted(BENCHMARKS.keys() - QUANTIZED)

COMPILED = "rms_norm"
"""Benchmarks compiled by default; `make release` compiles all."""

EAGER = find_executors()["eager"]
INDUCTOR = find_executors()["inductor"]


def tiny(name: str, **settings: Any) -> Any:
    return BENCHMARKS[name].at_size("tiny", **{"device": "cpu", **settings})


def differentiates(one: Any) -> bool:
    return bool(one.requires_grad)


@pytest.mark.parametrize("name", HERE)
def test_outputs_and_gradients_are_those_of_float64(name: str) -> None:
    one = tiny(name)
    cell = build_cell(one, EAGER, ComputeType.TRAINING_BACKWARD)
    check = cell.check()
    assert check.reason == check.undecided == ""
    assert check.dtype == "float32"
    gradients = [key for key in check.distances if key.startswith("gradient of")]
    assert bool(gradients) == differentiates(one)
    for compute_type in ComputeType:
        if compute_type is ComputeType.TRAINING_BACKWARD and not gradients:
            continue
        call = build_cell(tiny(name), EAGER, compute_type).timed_call()
        for _ in range(2):
            call.prepare()
            call.run()
        call.close()


@pytest.mark.parametrize("name", HERE)
def test_bfloat16_stays_within_its_tolerance(name: str) -> None:
    check = build_cell(tiny(name, dtype="bfloat16"), EAGER, ComputeType.TRAINING_BACKWARD).check()
    assert check.reason == check.undecided == ""
    assert check.dtype == "bfloat16"
    assert "mixtral" in name or not check.same_choices


@pytest.mark.parametrize("name", ["mixtral_block", "mixtral"])
def test_experts_that_rounding_chooses_are_those_of_the_reference_too(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the routers of float64 are others altogether, so that it chooses other experts."""
    from accel_bench_op.benchmarks.impl.transformers_parts import routers_of

    one = tiny(name, dtype="bfloat16")
    plain = one.reference

    def with_other_experts(fn: Any) -> Any:
        found = plain(fn)
        for router in routers_of(found):
            router.weight.data.neg_()
        return found

    cell = build_cell(one, EAGER, ComputeType.TRAINING_BACKWARD)
    monkeypatch.setattr(one, "reference", with_other_experts)
    check = cell.check()
    assert (check.reason, check.undecided, check.same_choices) == ("", "", True)

    def wrong(*args: Any, **kwargs: Any) -> Any:
        return 1.1 * cell.fn(*args, **kwargs)

    check = replace(cell, fn=wrong).check()
    assert check.undecided.startswith("no comparison: eager itself is off from float64 by")


@pytest.mark.parametrize("normalizes", [True, False])
def test_chosen_experts_have_the_weights_that_their_router_gives_them(normalizes: bool) -> None:
    """OLMoE's routers divide the weights by their sum only where the configuration says so."""
    from accel_bench_op.benchmarks.impl import transformers_parts as parts

    config = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config |= {"num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 2}
    config |= {"num_hidden_layers": 1, "vocab_size": 64, "norm_topk_prob": normalizes}
    shape: Any = SimpleNamespace(architecture="OlmoeForCausalLM", config=config)
    module = parts.LossOnlyModel(parts.model(shape, "cpu", "float32"))
    tokens = torch.arange(8).unsqueeze(0)
    same = parts.in_float64_with_experts_of(module)
    assert same is not None
    torch.testing.assert_close(same(tokens), parts.in_float64(module)(tokens))


@pytest.mark.filterwarnings("ignore")  # what a compiler's modules say when they are imported
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == COMPILED else pytest.mark.release) for name in HERE],
)
def test_compiled_outputs_and_gradients_are_those_of_float64(name: str) -> None:
    if reason := INDUCTOR.supports(tiny(name)):
        pytest.skip(reason)
    try:
        cell = build_cell(tiny(name), INDUCTOR, ComputeType.TRAINING_BACKWARD)
        assert cell.check().reason == ""
    finally:
        torch.compiler.reset()


def unmasked_half(one: Any) -> int:
    """FLOPs of the half of attention that a causal mask hides, which torch counts too."""
    if one.operation == "attention":
        return int(one.flops())
    if type(one).__module__.endswith(".models") and one.name != "grouped_experts":
        layers = one.shape.layers if type(one).__mro__[1].__name__ == "_ModelBenchmark" else 1
        lengths = [one.shape.length] * one.shape.batch
        return layers * attention_flops(one.shape.heads, one.shape.head, lengths)
    return 0


def multiplied_angles(one: Any) -> int:
    """FLOPs of position angles, which transformers 5.17 computes as matrix products."""
    old = Version(version("transformers")) < Version("5.18")
    rotates = one.name in ("llama", "mistral", "mixtral")
    return one.shape.head * one.shape.length if rotates and old else 0


ATTENTION: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""The CPU's flash operation, unknown to torch's counter."""


def attention_count(query: Any, *others: Any) -> int:
    """Torch's count for these shapes; torch 2.11 counts no fewer heads of keys than of queries."""
    return sdpa_flop_count(query, *((*one[:1], query[1], *one[2:]) for one in others))


@pytest.mark.parametrize("name", [name for name in HERE if tiny(name).flops() is not None])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    one = tiny(name)
    if name == "flex_attention":
        # Its calls on a CPU cannot be counted; it has the shape and the sums of another.
        assert one.flops() == tiny("sdpa_attention").flops()
        return
    # A reference multiplies by operations that torch's counter knows.
    fn, (args, kwargs) = one.reference(one.fn()), one.make_batch()
    args = [x.double() if x.is_floating_point() else x for x in args]
    formulas = {ATTENTION: lambda q, k, v, *_, **__: attention_count(q, k, v)}
    with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        fn(*args, **kwargs)
    more = unmasked_half(one) + multiplied_angles(one)
    assert one.flops() + more == counter.get_total_flops()
    assert one.backward_flops() == 2 * one.flops() or "lora" in name


def nbytes(value: Any) -> int:
    """Bytes of the tensors in a value, without scalars."""
    if isinstance(value, torch.Tensor):
        return value.nbytes if value.dim() else 0
    return sum(map(nbytes, value)) if isinstance(value, list | tuple) else 0


COUNTED = [name for name in HERE if tiny(name).counts_bytes]


def bytes_of(one: Any, compute_type: ComputeType) -> int | None:
    return build_cell(one, EAGER, compute_type).bytes_moved()


@pytest.mark.parametrize("name", COUNTED)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_are_those_of_inputs_weights_and_outputs(name: str, dtype: str) -> None:
    one = tiny(name, dtype=dtype)
    fn, (args, _) = one.fn(), one.make_batch()
    with torch.no_grad():
        out = fn(*args)
    weights = list(fn.parameters()) if isinstance(fn, torch.nn.Module) else []
    expected = nbytes(args) + nbytes(weights) + nbytes(out)
    if name == "embedding":
        expected += nbytes(out) - nbytes(weights)  # the rows that are read, not the whole table
    if name == "adamw_step":
        expected += 4 * nbytes(weights)  # two moments, read and written
    assert bytes_of(one, ComputeType.INFERENCE) == expected


@pytest.mark.parametrize("name", [name for name in COUNTED if tiny(name).requires_grad])
def test_backward_bytes_are_those_of_all_that_must_be_read_and_written(name: str) -> None:
    """Inputs, weights, and the gradients of outputs, inputs and weights; each of them once."""
    one = tiny(name)
    fn, (args, _) = one.fn(), one.make_batch()
    tensors = [*args, *(fn.parameters() if isinstance(fn, torch.nn.Module) else ())]
    with torch.no_grad():
        outputs = fn(*args)
    # A shift is not needed for the gradient of what it is added to, nor what a rotation turned,
    # nor a table for the rows that were taken of it.
    unread = {
        "layer_norm": lambda: fn.bias,
        "gpt2_mlp": lambda: fn.c_proj.bias,
        "rotary_embedding": lambda: args[:2],
        "embedding": lambda: fn.weight,
    }.get(name, tuple)()
    gradients = nbytes([tensor for tensor in tensors if tensor.requires_grad])
    read = nbytes(tensors) - nbytes(unread) + nbytes(outputs)
    assert bytes_of(one, ComputeType.TRAINING_BACKWARD) == read + gradients


def test_bytes_at_the_size_of_a_llama() -> None:
    one = BENCHMARKS["rms_norm"](model="llama-2-7b", batch=2, length=3)
    assert bytes_of(one, ComputeType.INFERENCE) == 4 * (2 * 6 * 4096 + 4096)
    assert bytes_of(one, ComputeType.TRAINING_BACKWARD) == 4 * (3 * 6 * 4096 + 2 * 4096)
    assert bytes_of(tiny("llama_block"), ComputeType.INFERENCE) is None


def test_the_sizes_are_those_of_published_models() -> None:
    llama = BENCHMARKS["llama"].at_size("llama-2-7b")
    assert (llama.shape.batch, llama.shape.length, llama.shape.layers) == (1, 4096, 32)
    # 6.61 of 6.74 billion parameters are in products, and 4,096 tokens see 2,048 others each.
    assert llama.flops() == pytest.approx(4096 * (2 * 6.607e9 + 2 * 2 * 32 * 4096 * 2048), rel=1e-3)
    xl = BENCHMARKS["nanogpt_gpt2"].at_size("gpt2-xl").shape
    assert (xl.hidden, xl.layers, xl.heads, xl.vocabulary) == (1600, 48, 25, 50304)
    assert (xl.batch, xl.length, xl.config["resid_pdrop"]) == (12, 1024, 0.0)
    few = BENCHMARKS["mixtral"].at_size("mixtral-8x7b-2-layers").shape
    assert (few.layers, few.experts, few.experts_per_token) == (2, 8, 2)
    mlp = BENCHMARKS["llama_mlp"].at_size("llama-3-8b")
    assert mlp.flops() == 3 * 2 * 8192 * 4096 * 14336


def test_other_batches_and_lengths_are_arguments() -> None:
    shape = BENCHMARKS["rms_norm"](model="llama-2-7b", batch=2, length=3).shape
    assert (shape.batch, shape.length, shape.hidden) == (2, 3, 4096)
    with pytest.raises(AccelBenchError, match=r"no shape is called 'lama-2-7b'.*'llama-2-7b'"):
        find_shape("lama-2-7b")


def test_every_shape_is_read_from_the_catalog() -> None:
    for name in SHAPES:
        shape = find_shape(name)
        assert shape.hidden == shape.heads * shape.head
        assert shape.length <= (shape.config.get("sliding_window") or shape.length)


@pytest.mark.skipif(find_spec("thunder") is None, reason="Thunder works with the oldest torch")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama_mlp", "rms_norm"])
def test_thunder_computes_layers_as_torch_does(name: str) -> None:
    cell = build_cell(tiny(name), find_executors()["thunder"], ComputeType.TRAINING_BACKWARD)
    found = cell.check()
    assert (found.problem, found.undecided) == ("", "")
    assert max(found.distances.values()) <= found.tolerance


@pytest.mark.parametrize("name", sorted(QUANTIZED))
def test_a_missing_library_is_a_reason_with_its_command(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("accel_bench_op.benchmarks.lora.find_spec", lambda module: None)
    library, extra = BENCHMARKS[name].needs
    expected = f"benchmark {name} needs {library}: {install_command(extra)}"
    assert EAGER.supports(tiny(name)) == expected


def test_kernels_without_float32_on_a_gpu_are_refused_there() -> None:
    for name in ("flash_attention", "varlen_attention"):
        assert "bfloat16" in EAGER.supports(tiny(name, device="cuda"))
        assert EAGER.supports(tiny(name, device="cuda", dtype="bfloat16")) == ""
        assert EAGER.supports(tiny(name)) == ""


def without_groups(  # noqa: PLR0917 - as the kernel
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size
):
    """Subset of the arguments that torch 2.11's kernel supports."""
    assert (query.shape[1], window_size) == (key.shape[1], (-1, 0))
    lengths = cu_seq_q.diff().tolist()
    assert (cu_seq_k is cu_seq_q, max_q, max_k) == (True, max(lengths), max(lengths))
    return one_by_one(lengths)(query, key, value, cu_seq_q)


def with_groups(*heads: Any, enable_gqa: bool, **others: Any) -> torch.Tensor:
    """What today's kernel returns."""
    query, key, value, *rest = heads
    assert enable_gqa == (query.shape[1] != key.shape[1])
    groups = query.shape[1] // key.shape[1]
    pairs = (one.repeat_interleave(groups, dim=1) for one in (key, value))
    return without_groups(query, *pairs, *rest, **others)


@pytest.mark.parametrize("key_heads", [1, 4])
def test_packed_rows_are_attended_by_kernels_with_and_without_groups_of_heads(
    key_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel itself needs a GPU; the installed torch says which arguments it takes."""
    installed = varlen_module.varlen_attn
    kernels: list[Any] = [without_groups]
    if "enable_gqa" in inspect.signature(installed).parameters:
        kernels.append(with_groups)
    lengths = [5, 3]
    starts = torch.tensor([0, 5, 8], dtype=torch.int32)
    query, key, value = (torch.randn(8, heads, 16) for heads in (4, key_heads, key_heads))
    expected = one_by_one(lengths)(query, key, value, starts)
    for kernel in kernels:
        spec = installed if kernel is kernels[-1] else kernel
        monkeypatch.setattr(varlen_module, "varlen_attn", create_autospec(spec, side_effect=kernel))
        found = varlen(max(lengths))(query, key, value, starts)
        torch.testing.assert_close(found, expected)


def test_at_least_sixty_are_collected_and_nothing_is_built_for_it() -> None:
    """Of all sizes, in a process that does not even import torch."""
    program = """
import sys
from accel_bench_op import ComputeType, find_benchmarks
kinds = find_benchmarks().values()
cells = [kind.at_size(size, device="cpu") for kind in kinds for size in kind.sizes]
assert not {"torch", "transformers", "peft"} & {*sys.modules}
print(len(ComputeType) * len(cells), len(ComputeType) * len(kinds))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    every, tiny_ones = map(int, done.stdout.split())
    assert tiny_ones >= 60
    assert every >= 200


@pytest.mark.parametrize("name", HERE)
def test_another_batch_has_other_values_and_the_same_weights(name: str) -> None:
    values, weights = [], []
    for seed in (0, 1):
        one = tiny(name)
        torch.manual_seed(seed)
        values.append(one.make_batch()[0][0])
        assert torch.initial_seed() == seed
        fn = one.fn()
        weights.append(fn.state_dict() if isinstance(fn, torch.nn.Module) else {})
    assert not torch.equal(*values)
    assert all(torch.equal(weights[1][key], one) for key, one in weights[0].items())
