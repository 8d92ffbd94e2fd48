"""The evidence of quantized models: modules, elements, and every byte that is kept."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from accel_bench import describe_quantized
from accel_bench.modeling.quantization import stored_bytes


class Packed(nn.Module):
    """Four bits a weight in a buffer, scales in another, more of them beside the parameter."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        words = torch.zeros(in_features * out_features // 2, dtype=torch.uint8)
        self.weight = nn.Parameter(words, requires_grad=False)
        self.register_buffer("scales", torch.ones(out_features, dtype=torch.float16))
        state = SimpleNamespace(code=torch.ones(16), nested=SimpleNamespace(absmax=torch.ones(4)))
        self.weight.state = state  # type: ignore[attr-defined]


def test_evidence_counts_modules_elements_and_all_bytes() -> None:
    model = nn.Sequential(Packed(8, 4), nn.Linear(4, 2, dtype=torch.bfloat16))
    found = describe_quantized(model, {"0": model[0]}, bits=4, kernel="none")
    kept = 8 * 4 // 2 + 4 * 2 + 16 * 4 + 4 * 4
    assert found["module_classes"] == {"Packed": 1}
    assert (found["quantized_modules"], found["quantized_elements"]) == (1, 32)
    assert (found["quantized_bytes"], found["quantized_bytes_in_bfloat16"]) == (kept, 64)
    assert found["weight_bytes"] == kept + (8 + 2) * 2
    assert found["weight_dtypes"] == {"float32": 20, "uint8": 16, "bfloat16": 10, "float16": 4}


def test_tied_weights_count_once() -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    assert stored_bytes(first, second) == 128
    second.weight = first.weight
    assert stored_bytes(first, second) == 64
