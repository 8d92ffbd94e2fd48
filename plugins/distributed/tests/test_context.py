"""Torch's context parallelism on two CPU ranks: while these tests pass, `context` is refused."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = {
    SDPBackend.FLASH_ATTENTION: (
        "aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding strategy"
    ),
    SDPBackend.MATH: "got mixed torch.Tensor and DTensor",
}
"""Kernels of attention on a CPU, each with torch's reason against divided sequences."""


def attend(rank: int, folder: str) -> None:
    """Be one of two ranks: attend by each kernel to a sequence that both share.

    Torch replaces the function in its module.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel

    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for kernel in KERNELS:
        hidden, said = torch.randn(2, 4, 16, 8), "it works"
        with context_parallel(mesh, buffers=[hidden], buffer_seq_dims=[2]), sdpa_kernel(kernel):
            try:
                F.scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)
            except (NotImplementedError, RuntimeError) as error:
                said = str(error)
        Path(folder, f"{kernel.name} {rank}").write_text(said)
    torch.distributed.destroy_process_group()


def test_torch_divides_no_sequence_on_a_cpu(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(attend, (str(tmp_path),), 2, start_method="fork")
    for kernel, reason in KERNELS.items():
        for rank in (0, 1):
            assert reason in (tmp_path / f"{kernel.name} {rank}").read_text()
