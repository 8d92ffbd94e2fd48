"""On a GPU: Liger's kernels in bfloat16, seen in a trace; each says why it skips."""

from typing import Any

import pytest
import torch

from accel_bench import Status
from accel_bench.testing import check_plugin, run_plugin

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="Liger's kernels need a GPU"),
]


@pytest.mark.parametrize("plugin", ["fused-kernels", "liger"])
def test_the_plugin_keeps_the_contract_on_a_gpu(plugin: str) -> None:
    check_plugin(plugin, device="cuda", dtypes=["float32", "bfloat16"])


def test_the_kernels_are_seen_in_a_trace() -> None:
    result = run_plugin("fused-kernels", device="cuda", scenario={"model": {"dtype": "bfloat16"}})
    assert result.status is Status.OK, result.reasons
    evidence: Any = result.ranks[0].evidence["fused-kernels"]
    for name in ("rms_norm", "rope", "swiglu", "cross_entropy"):
        assert any(name in kernel for kernel in evidence["kernels_seen"]), evidence
    assert evidence["left_out"] == {"lora": "the model has no LoRA adapters"}


@pytest.mark.parametrize("part", ["rms_norm", "rope", "gated_mlp", "cross_entropy"])
def test_a_part_alone_keeps_the_contract_on_a_gpu(part: str) -> None:
    check_plugin("fused-kernels", options={part: True}, device="cuda", archs=["LlamaForCausalLM"])
