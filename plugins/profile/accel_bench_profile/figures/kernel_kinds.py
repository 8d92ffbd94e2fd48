"""Kinds of operations and kernels, and evidence of fusion, by their names."""

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
"""Name patterns by kind, in order of matching, regardless of case."""


@lru_cache(maxsize=4096)
def shared_kind(name: str) -> NamedKind | None:
    """Return the kind of a kernel or operation by its name; None if no pattern in `SHARED` fits."""
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
"""Name patterns by kind of operation, in order of matching."""

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
"""Fused operations by patterns of kernel names."""

READ = "aten::_local_scalar_dense"
"""Operation by which the host reads a tensor's value, as in `.item()`."""

BACKEND = re.compile(r"^(gloo|ucc|mpi):")
"""Ranges in which a host backend runs a collective on its own thread."""

WAITS = re.compile(r"^(cuda|hip)(Stream|Device|Event)Synchronize|^cudaMemcpy$|^cuStreamSynchronize")
"""Calls of a device's runtime in which the host waits."""


@lru_cache(maxsize=4096)
def kind_of(name: str) -> Kind:
    """Return the kind of an operation or kernel by its name; `memory-bound` if no pattern fits."""
    known = (kind for kind, pattern in PATTERNS if re.search(pattern, name, re.IGNORECASE))
    return next(known, "memory-bound")


def kind_of_operation(name: str) -> Kind:
    """Return a host operation's kind by its name; `autograd` for unknown names without `::`."""
    kind = kind_of(name)
    return "autograd" if kind == "memory-bound" and "::" not in name else kind


@lru_cache(maxsize=4096)
def fused_by(name: str) -> str:
    """Return which fusion a kernel's name shows, such as `attention in one kernel`; else empty."""
    known = (what for what, pattern in FUSED if re.search(pattern, name, re.IGNORECASE))
    return next(known, "")


def computes(name: str) -> bool:
    """Return whether a host operation computes, rather than only calls other operations."""
    return kind_of_operation(name) not in ("autograd", "communication")


STEP_KINDS: tuple[StepKind, ...] = get_args(StepKind)
"""All kinds of a step's operations, in display order."""

STRENGTH: tuple[StepKind, ...] = (
    "idle", "memory-bound", "matmul", "norm", "loss", "attention", "optimizer", "data",
    "communication",
)  # fmt: skip
"""Kinds of operations in increasing precedence, for nested operations."""

INDUCTOR: tuple[tuple[StepKind, re.Pattern[str]], ...] = (
    ("matmul", re.compile(r"triton_tem_\w*mm")),
    ("loss", re.compile(r"triton_\w*(log_softmax|nll)")),
    ("attention", re.compile(r"triton_tem_\w*(flex|attention)")),
    ("norm", re.compile(r"triton_\w*rsqrt")),
)
"""Kinds of torch.compile's kernels, by patterns of the fused operations in their names."""

ATTENTION_PARTS = re.compile(r"bmm|softmax|matmul|einsum")
"""Operations that count as attention if an attention module calls them itself."""


def step_kind(name: str) -> StepKind:
    """Return the kind of an operation or kernel by its name alone."""
    for kind, form in INDUCTOR:
        if form.search(name):
            return kind
    by_name = kind_of(name)
    if by_name == "compiled" or by_name == "autograd":  # noqa: PLR1714 - mypy narrows by this alone
        return "memory-bound"
    return by_name


def kind_in(name: str, role: str) -> StepKind:
    """Return the kind of an operation that a module with the role `role`, such as `norm`, calls."""
    kind = step_kind(name)
    if role == "attention" and kind == "matmul":
        return "attention" if ATTENTION_PARTS.search(name) else kind
    if role in ("norm", "loss") and kind == "memory-bound":
        return "norm" if role == "norm" else "loss"
    return kind


def stronger(first: StepKind, second: StepKind) -> StepKind:
    """Return the more specific of two kinds: `attention` rather than `matmul`."""
    return max(first, second, key=STRENGTH.index)
