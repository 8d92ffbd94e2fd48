"""Out of memory as data: the wordings of allocators, and the part of the step."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from accel_bench.worker.failure import memory_figures, sentence, step_part

GIB, MIB, KIB = 2**30, 2**20, 2**10
TOO_MUCH = 2**46
"""Elements that no address space holds."""

CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of "
    "which 1.25 GiB is free. Process 71 has 3.00 GiB memory in use. Including non-PyTorch memory, "
    "this process has 74.50 GiB memory in use. 76.00 GiB allowed; Of the allocated memory "
    "70.00 GiB is allocated by PyTorch, with 512.00 MiB allocated in private pools (e.g., CUDA "
    "Graphs), and 1.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
    "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid "
    "fragmentation.  See documentation for Memory Management"
)
CONTAINER = (
    "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 15.50 GiB of "
    "which 8.50 KiB is free. Including non-PyTorch memory, this process has 17179869184.00 GiB "
    "memory in use. Of the allocated memory 11.50 GiB is allocated by PyTorch, and 0 bytes is "
    "reserved by PyTorch but unallocated."
)
XPU = (
    "XPU out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 48.00 GiB. Of "
    "the allocated memory 46.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch "
    "but unallocated."
)
MPS = (
    "MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 512.00 KB, max allowed: "
    "9.00 GB). Tried to allocate 256.00 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO"
)
NAMES = (
    "bytes_asked",
    "bytes_free",
    "bytes_total",
    "bytes_in_use",
    "bytes_allocated",
    "bytes_reserved_unallocated",
)


def figures(text: str) -> tuple[int | None, ...]:
    found = memory_figures(RuntimeError(text))
    return tuple(found[name] for name in NAMES)


def raised_by(action: Callable[[], Any]) -> BaseException:
    with pytest.raises((RuntimeError, MemoryError)) as caught:
        action()
    return caught.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CUDA, (2 * GIB, 1.25 * GIB, 79.25 * GIB, 74.5 * GIB, 70 * GIB, 1.5 * GIB)),
        (CUDA.replace("CUDA", "HIP", 1), (2 * GIB, 1.25 * GIB, 79.25 * GIB, 74.5 * GIB, 70 * GIB,
                                          1.5 * GIB)),
        (CONTAINER, (512, 8.5 * KIB, 15.5 * GIB, None, 11.5 * GIB, 0)),
        (XPU, (3 * GIB, None, 48 * GIB, None, 46 * GIB, GIB)),
        (MPS, (256 * MIB, None, 9 * GIB, None, 8 * GIB, None)),
        ("CUDA error: out of memory", (None,) * 6),
    ],
    ids=["cuda", "rocm", "container", "xpu", "mps", "no-figures"],
)  # fmt: skip
def test_every_wording_gives_its_figures(text: str, expected: tuple[float | None, ...]) -> None:
    assert figures(text) == expected


def test_torch_s_own_error_on_a_cpu_is_read() -> None:
    found = memory_figures(raised_by(lambda: torch.empty(TOO_MUCH)))
    assert found["bytes_asked"] == 4 * TOO_MUCH
    assert 0 < found["bytes_free"] <= found["bytes_total"]
    assert 0 < found["bytes_in_use"] < found["bytes_total"]
    assert found["bytes_allocated"] is None


def test_a_limit_of_the_address_space_is_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda kind: (GIB // 4, -1))
    found = memory_figures(MemoryError())
    assert found["bytes_total"] == GIB // 4
    assert found["bytes_free"] < GIB // 4


def test_numpy_s_own_error_is_read() -> None:
    found = memory_figures(raised_by(lambda: numpy.empty(TOO_MUCH)))
    assert found["bytes_asked"] == 8 * TOO_MUCH


def test_what_the_text_leaves_out_is_asked_of_the_allocator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stats = {"allocated_bytes.all.current": 80, "reserved_bytes.all.current": 95}
    answers = {"is_initialized": True, "mem_get_info": (3, 100), "memory_stats": stats}
    cuda = {name: (lambda value=value: value) for name, value in answers.items()}
    monkeypatch.setattr(torch, "cuda", SimpleNamespace(**cuda))
    assert figures("CUBLAS_STATUS_ALLOC_FAILED") == (None, 3, 100, None, 80, 15)
    assert figures(CUDA)[1] == 1.25 * GIB


def test_a_device_that_answers_no_more_leaves_null(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost() -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    cuda = SimpleNamespace(is_initialized=lambda: True, mem_get_info=lost)
    monkeypatch.setattr(torch, "cuda", cuda)
    assert figures("CUDA error: out of memory") == (None,) * 6


def test_the_sentence_says_what_is_known() -> None:
    found = memory_figures(RuntimeError(CUDA))
    assert sentence(found, "backward") == (
        "out of memory in backward: asked 2.00 GiB, 1.25 GiB free of 79.2 GiB, "
        "1.50 GiB reserved but not allocated"
    )
    assert (
        sentence({"bytes_asked": 512, "bytes_free": None}, "") == "out of memory: asked 512 bytes"
    )
    assert sentence({}, "load_model") == "out of memory in load_model"


class Greedy(torch.autograd.Function):
    """Asks for too much in the pass that it is told."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, where: str) -> torch.Tensor:
        ctx.where = where
        if where == "forward":
            torch.empty(TOO_MUCH)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if ctx.where == "backward":
            torch.empty(TOO_MUCH)
        return gradient, None


class Model(torch.nn.Module):
    """One product and a greedy function."""

    def __init__(self, where: str, recompute: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.where, self.recompute = where, recompute
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recompute:
            return checkpoint(self._compute, x, use_reentrant=False)
        return self._compute(x)

    def _compute(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            torch.empty(TOO_MUCH)
        return Greedy.apply(torch.relu(self.layer(x)), self.where).sin()


class GreedySGD(torch.optim.SGD):
    """Asks for too much in its step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        torch.empty(TOO_MUCH)


def take_step(model: Model, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
    chosen = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    model(torch.ones(1, 2)).sum().backward()
    chosen.step()


@pytest.mark.parametrize(
    ("action", "part"),
    [
        (lambda: take_step(Model("forward")), "forward"),
        (lambda: take_step(Model("backward")), "backward"),
        (lambda: take_step(Model("", recompute=True)), "backward"),
        (lambda: take_step(Model(""), GreedySGD), "optimizer"),
        (lambda: torch.empty(TOO_MUCH), None),
    ],
    ids=["forward", "backward", "recomputed-in-backward", "optimizer", "elsewhere"],
)
def test_the_part_of_the_step_is_known_from_the_traceback(
    action: Callable[[], None], part: str | None
) -> None:
    assert step_part(raised_by(action)) == part


@pytest.mark.gpu
def test_torch_s_own_error_on_a_gpu_is_read() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    held = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    found = memory_figures(raised_by(lambda: torch.empty(2**40, device="cuda")))
    assert found["bytes_asked"] == 2**42
    assert 0 < found["bytes_free"] <= found["bytes_total"]
    assert found["bytes_allocated"] >= held.nbytes
    assert found["bytes_reserved_unallocated"] >= 0
