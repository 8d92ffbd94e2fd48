"""Limits of fake GPU tensors in a CPU build of torch, for which ledgers use real tensors.

If a test fails, docs/count.md must be revised: a fake device may have become possible.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="is about a torch that is built for CPUs only"
)

GRADIENT = """
import resource
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
with FakeTensorMode():
    weight = torch.empty(2, 2, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
"""


class Names(TorchDispatchMode):
    """Dispatch mode that collects the names of operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def attention(device: str) -> list[str]:
    """The operations of attention on fake tensors."""
    with FakeTensorMode(), torch.no_grad():
        heads = torch.empty(1, 2, 16, 16, device=device, dtype=torch.bfloat16)
        with Names() as operations:
            scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return operations.names


def test_a_fake_gpu_shows_products_and_a_softmax_where_a_real_one_has_one_kernel() -> None:
    assert any("attention" in name for name in attention("cpu"))
    on_a_fake_gpu = attention("cuda")
    assert not any("attention" in name for name in on_a_fake_gpu)
    assert {"matmul", "bmm"} & set(on_a_fake_gpu)


@pytest.mark.release
def test_a_gradient_on_a_fake_gpu_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", GRADIENT], capture_output=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert b"not linked with support for cuda devices" in done.stderr
