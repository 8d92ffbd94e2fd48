"""Kinds of operations and kernels, and which of them are fused, by their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import get_args

from accel_bench_profile.figures.modules import NamedKind, StepKind
from accel_bench_profile.figures.schema import Kind

SHARED: Mapping[NamedKind, str] = {
    "optimizer": r"_fused_(adam|sgd|adagrad)|Fused(Adam|Sgd|Adagrad)",
    "loss": r"cross_entropy|nll_?loss|log_?softmax|(mse|l1|kl_div)_?loss",
    "attention": r"attention|flash|fmha|sdpa|_fort_native_sdp|softmax",
    "norm": r"(layer|rms|group|batch)_?norm|RowwiseMoments",
}
"""Names by kind, in the order in which they are tried, whatever their case."""


@lru_cache(maxsize=4096)
def shared_kind(name: str) -> NamedKind | None:
    """Return the kind of an operation or kernel by its name; None for one of another kind."""
    known = (kind for kind, form in SHARED.items() if re.search(form, name, re.IGNORECASE))
    return next(known, None)


PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("communication", r"nccl|^gloo:|^c10d::|^_?c10d_functional::|record_param_comms|^ucc:"),
    ("compiled", r"^Compiled|^Torch-Compiled Region|cpp_fused"),
    ("autograd", r"^autograd::|^torch::autograd::|^(?-i:\w+Backward\d*)$"),
    *SHARED.items(),
    (
        "matmul",
        r"^aten::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|dot|vdot|linear|matmul|einsum|conv.*)$"
        r"|^aten::_(scaled|int|weight_int\d\w*)_mm|grouped_?(mm|gemm)|gemm|gemv|cutlass|wgmma|xmma"
        r"|nvjet|mkldnn|mkl_linear|splitK",
    ),
)
"""Kinds in the order in which they are tried, each with the names that it has."""

FUSED: tuple[tuple[str, str], ...] = (
    ("attention in one kernel", r"flash|fmha_cutlass|_efficient_attention|_fort_native_sdp"),
    ("fused by torch.compile", r"^triton_(poi|red|per|tem|for)_fused|cpp_fused"),
    ("graph of torch.compile", r"^Torch-Compiled Region|^CompiledFunction"),
    ("optimizer in one kernel", r"_fused_(adam|adamw|sgd|adagrad)_|Fused(Adam|Sgd|Adagrad)"),
    ("optimizer over lists of tensors", r"multi_tensor_apply_kernel"),
    ("RMS norm in one kernel", r"rms_?norm"),
    ("layer norm in one kernel", r"native_layer_norm|layer_norm_\w*kernel|LayerNorm\w*Kernel"),
    ("rotary embedding in one kernel", r"rope|rotary"),
    ("SwiGLU or GeGLU in one kernel", r"swiglu|geglu"),
    ("cross-entropy in one kernel", r"cross_entropy\w*kernel|element_mul_kernel"),
    ("matrix products of experts in one kernel", r"grouped_?(mm|gemm)"),
)
"""What names of kernels are evidence of."""

READ = "aten::_local_scalar_dense"
"""The operation with which the host reads a value of a tensor, as `.item()` does."""

BACKEND = re.compile(r"^(gloo|ucc|mpi):")
"""Ranges in which a backend on the host carries out a collective, on a thread of its own."""

WAITS = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize|^cudaMemcpy$|^cuStreamSynchronize")
"""Calls of a device's runtime in which the host waits for it."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind of an operation or kernel; `memory-bound` for a name that is of no other."""
    known = (kind for kind, pattern in PATTERNS if re.search(pattern, name, re.IGNORECASE))
    return next(known, "memory-bound")


def kind_of_operation(name: str) -> Kind:
    """Return the kind of an operation of the host, where functions of Python have no namespace."""
    kind = kind_of(name)
    return "autograd" if kind == "memory-bound" and "::" not in name else kind


@lru_cache(maxsize=4096)
def fused_by(name: str) -> str:
    """Return what a kernel's name shows to be fused; empty for a plain one."""
    known = (what for what, pattern in FUSED if re.search(pattern, name, re.IGNORECASE))
    return next(known, "")


def computes(name: str) -> bool:
    """Return whether an operation of the host computes, and does not only call others."""
    return kind_of_operation(name) not in ("autograd", "communication")


STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
"""All of them, in the order in which they are shown."""

STRENGTH: tuple[StepKind, ...] = (
    "idle", "memory-bound", "matmul", "norm", "loss", "attention", "optimizer", "data",
    "communication",
)  # fmt: skip
"""The same, the one that says more about nested operations behind the other."""

INDUCTOR: tuple[tuple[StepKind, re.Pattern[str]], ...] = (
    ("matmul", re.compile(r"triton_tem_\w*mm")),
    ("loss", re.compile(r"triton_\w*(log_softmax|nll)")),
    ("attention", re.compile(r"triton_tem_\w*(flex|attention)")),
    ("norm", re.compile(r"triton_\w*rsqrt")),
)
"""Kernels of torch.compile by the operations that are fused in them, which their names hold."""

ATTENTION_PARTS = re.compile(r"bmm|softmax|matmul|einsum")
"""Operations that are attention where a module of attention calls them itself."""


def step_kind(name: str) -> StepKind:
    """Return the kind of an operation or kernel by its name alone."""
    for kind, form in INDUCTOR:
        if form.search(name):
            return kind
    found = kind_of(name)
    if found == "compiled" or found == "autograd":  # noqa: PLR1714 - mypy narrows by this alone
        return "memory-bound"
    return found


def kind_in(name: str, role: str) -> StepKind:
    """Return the kind of an operation that a module of this role calls itself."""
    kind = step_kind(name)
    if role == "attention" and kind == "matmul":
        return "attention" if ATTENTION_PARTS.search(name) else kind
    if role in ("norm", "loss") and kind == "memory-bound":
        return "norm" if role == "norm" else "loss"
    return kind


def stronger(first: StepKind, second: StepKind) -> StepKind:
    """Return which of two kinds says more: `attention` more than the `matmul` within."""
    return max(first, second, key=STRENGTH.index)
