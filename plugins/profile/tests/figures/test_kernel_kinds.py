"""Kinds by names of operations and kernels, with real names of torch and its libraries."""

from __future__ import annotations

import pytest
from accel_bench_profile.figures.kernel_kinds import computes, fused_by, kind_of, kind_of_operation
from accel_bench_profile.figures.schema import Kind

OPERATIONS: dict[str, Kind] = {
    "aten::mm": "matmul",
    "aten::addmm": "matmul",
    "aten::linear": "matmul",
    "aten::_grouped_mm": "matmul",
    "mkldnn::_linear_pointwise": "matmul",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": "attention",
    "aten::_softmax": "attention",
    "aten::_log_softmax": "loss",
    "aten::nll_loss_backward": "loss",
    "aten::native_layer_norm": "norm",
    "aten::_fused_adamw_": "optimizer",
    "aten::add_": "memory-bound",
    "aten::silu": "memory-bound",
    "aten::linalg_vector_norm": "memory-bound",
    "c10d::allreduce_": "communication",
    "gloo:all_reduce": "communication",
    "Torch-Compiled Region: 0/0": "compiled",
    "CompiledFunctionBackward": "compiled",
    "autograd::engine::evaluate_function: MmBackward0": "autograd",
    "ScaledDotProductFlashAttentionForCpuBackward0": "autograd",
    "torch::autograd::AccumulateGrad": "autograd",
    "MyFunction": "autograd",
}


KERNELS: dict[str, Kind] = {
    "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT": "matmul",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>": "matmul",
    "fmha_cutlassF_bf16_aligned_64x64_rf_sm80": "attention",
    "void (anonymous namespace)::cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>": "loss",
    "_rms_norm_forward_kernel": "norm",
    "triton_poi_fused_add_mul_silu_3": "memory-bound",
    "Memcpy HtoD (Pinned -> Device)": "memory-bound",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "communication",
}


@pytest.mark.parametrize(("name", "kind"), OPERATIONS.items())
def test_an_operation_has_a_kind(name: str, kind: Kind) -> None:
    assert kind_of_operation(name) == kind


@pytest.mark.parametrize(("name", "kind"), KERNELS.items())
def test_a_kernel_has_a_kind(name: str, kind: Kind) -> None:
    assert kind_of(name) == kind


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("triton_poi_fused_add_mul_silu_3", "fused by torch.compile"),
        ("_rms_norm_forward_kernel", "RMS norm in one kernel"),
        ("_swiglu_forward_kernel", "SwiGLU or GeGLU in one kernel"),
        ("_triton_rope", "rotary embedding in one kernel"),
        ("liger_cross_entropy_kernel", "cross-entropy in one kernel"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention in one kernel"),
        ("aten::_fused_adamw_", "optimizer in one kernel"),
        ("CompiledFunction", "graph of torch.compile"),
        ("aten::mm", ""),
        ("aten::_softmax", ""),
    ],
)
def test_a_fused_kernel_is_known_by_its_name(name: str, what: str) -> None:
    assert fused_by(name) == what


def test_what_only_calls_others_does_not_compute() -> None:
    assert computes("aten::mm")
    assert computes("CompiledFunctionBackward")
    assert not computes("autograd::engine::evaluate_function: MmBackward0")
    assert not computes("MyFunctionBackward")
    assert not computes("c10d::allreduce_")
