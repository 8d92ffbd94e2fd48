"""Evidence of loaders that quantize: quantized modules, bytes and seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from accel_bench.documents.base import JsonValue
from accel_bench.result import Metric

if TYPE_CHECKING:
    import torch

BYTES_OF_BFLOAT16 = 2


def describe_quantized(
    model: torch.nn.Module,
    quantized: Mapping[str, torch.nn.Module],
    bits: int,
    kernel: str,
    elements: int | None = None,
) -> dict[str, JsonValue]:
    """Return JSON evidence of a model with quantized modules: their number, kernel and bytes.

    `quantized` has the modules by name, with weights of `bits` bits. `kernel` is the name of the
    kernel that multiplies with them. Each module has `in_features` and `out_features`, unless
    `elements` is the number of weights. Bytes include all tensors of a module, such as scales;
    shared tensors count once.
    """
    from accel_bench.modeling.tensors import elements_by_dtype

    if elements is None:
        elements = sum(m.in_features * m.out_features for m in quantized.values())
    stored, in_bfloat16 = stored_bytes(*quantized.values()), elements * BYTES_OF_BFLOAT16
    fraction = stored / max(1, in_bfloat16)
    return {
        "summary": f"{len(quantized)} modules in {bits} bits, with {fraction:.3f} of their bytes "
        f"in bfloat16; kernel {kernel}",
        "quantized_modules": len(quantized),
        "module_classes": dict(Counter(type(module).__name__ for module in quantized.values())),
        "bits": bits,
        "kernel": kernel,
        "quantized_elements": elements,
        "quantized_bytes": stored,
        "quantized_bytes_in_bfloat16": in_bfloat16,
        "weight_bytes": stored_bytes(model),
        "weight_dtypes": {**elements_by_dtype(_distinct(model))},
    }


def quantize_seconds(
    seconds: float, scope: Literal["rank", "global"] = "rank", kind: str = ""
) -> Metric:
    """Return the metric of the seconds that quantization took, outside of all steps.

    `scope` is `global` if all ranks and runs share one quantization; `kind` names the method.
    """
    return Metric(
        name="quantize_seconds",
        value=seconds,
        unit="seconds",
        scope=scope,
        better="lower",
        kind=kind,
    )


def stored_bytes(*modules: torch.nn.Module) -> int:
    """Return the bytes of the modules' weights and buffers, with scales and zero points."""
    return sum(tensor.nbytes for tensor in _distinct(*modules))


def _distinct(*modules: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Return the plain tensors of modules; of several at one address only the largest."""
    from accel_bench.modeling.tensors import plain_tensors

    kept: dict[tuple[int, object], torch.Tensor] = {}
    for part in (part for module in modules for part in _tensors(module)):
        for tensor in plain_tensors(part):
            place = tensor.data_ptr(), tensor.device
            if place not in kept or tensor.nbytes > kept[place].nbytes:
                kept[place] = tensor
    return kept.values()


def _tensors(module: torch.nn.Module) -> Iterator[Any]:
    """Yield a module's parameters, buffers, and tensors that libraries attach to these or to it."""
    yield from module.parameters()
    yield from module.buffers()
    for holder in (*module.modules(), *module.parameters()):
        yield from _attached(holder)


def _attached(holder: object, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yield the tensors, such as scales, in an object's attributes, nested up to `depth` deep."""
    import torch

    for value in getattr(holder, "__dict__", {}).values():
        if isinstance(value, torch.Tensor):
            yield value
        elif depth and not isinstance(value, torch.nn.Module | type):
            yield from _attached(value, depth - 1)
