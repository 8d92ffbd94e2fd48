"""Executors of micro-benchmarks on a CPU: torch's kernels, and LoRA over every kind of base."""

import os
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from accel_bench_fused_kernels.executors import ADAPTED, MODEL, PARTS, FusedKernels, Liger
from accel_bench_op import ComputeType, find_benchmarks, find_executors
from accel_bench_op.cell_impl import build_cell

# Importing GPTQModel makes it look for new versions of numbers that it has in its own way.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

BENCHMARKS = find_benchmarks()
FUSED = FusedKernels()
EAGER = find_executors()["eager"]

FITTING = sorted(name for name, kind in BENCHMARKS.items() if FUSED.takes(kind))


def tiny(name: str, **settings: Any) -> Any:
    return BENCHMARKS[name].at_size("tiny", **{"device": "cpu", **settings})


def test_both_are_found_and_take_what_they_have_kernels_for() -> None:
    found = find_executors()
    assert isinstance(found["fused-kernels"], FusedKernels)
    assert isinstance(found["liger"], Liger)
    operations = {BENCHMARKS[name].operation for name in FITTING}
    assert operations == {*PARTS, *ADAPTED, MODEL}
    assert not found["liger"].takes(BENCHMARKS["lora_linear"])
    assert found["liger"].takes(BENCHMARKS["layer_norm"])


@pytest.mark.parametrize("name", FITTING)
def test_fused_kernels_compute_what_eager_does_in_float64(name: str) -> None:
    one = tiny(name)
    if reason := FUSED.supports(one):
        pytest.skip(reason)
    check = build_cell(one, FUSED, ComputeType.TRAINING_BACKWARD).check()
    assert check.reason == ""
    assert any(key.startswith("gradient") for key in check.distances)


@pytest.mark.parametrize("name", sorted(ADAPTED))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eager_layers_over_quantized_bases_are_those_of_their_dense_matrices(
    name: str, dtype: str
) -> None:
    one = tiny(name, dtype=dtype)
    library = one.needs[0].partition(".")[0]
    if library and find_spec(library) is None:
        pytest.skip(EAGER.supports(one))
    assert EAGER.supports(one) == ""
    check = build_cell(one, EAGER, ComputeType.TRAINING_BACKWARD).check()
    assert check.reason == ""
    assert {key for key in check.distances if "lora" in key}


@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="Triton is interpreted")
def test_what_needs_a_gpu_is_refused_with_the_reason() -> None:
    for name in ("rms_norm", "llama"):
        assert "need a GPU" in find_executors()["liger"].supports(tiny(name))
    assert "need a GPU" in FUSED.supports(tiny("rotary_embedding"))
    assert FUSED.supports(tiny("rms_norm")) == ""


def test_a_fused_model_leaves_the_benchmark_s_own_and_its_module_alone(bench: Any) -> None:
    one = tiny("llama")
    fused = FUSED.build(one)
    model = one.returned_fn.model
    before = bench.code_of(model)
    tokens = one.make_batch()[0][0]
    loss = fused(tokens)
    assert not bench.differing(before, bench.code_of(model))
    assert not any("forward" in vars(module) for module in model.modules())
    assert torch.allclose(loss, one.returned_fn(tokens), rtol=1e-5)
    assert {id(p) for p in fused.parameters()} == {id(p) for p in model.parameters()}
