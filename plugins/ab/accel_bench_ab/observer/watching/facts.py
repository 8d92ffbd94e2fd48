"""Facts about an observed process: optimizers, device, compiler, memory."""

from __future__ import annotations

import sys
from typing import Any


def optimizer_facts(optimizers: list[Any]) -> dict[str, Any]:
    """Return the optimizers' classes, hyperparameters and dtypes of states, as JSON.

    A hyperparameter maps each of its values, as text, to the number of weight tensors that have it.
    `state_dtypes` maps each dtype to a number of elements of the states.
    """
    facts: dict[str, Any] = {"optimizer": "+".join(type(optim).__name__ for optim in optimizers)}
    rates: dict[str, int] = {}
    decays: dict[str, int] = {}
    others: dict[str, dict[str, int]] = {}
    states: dict[str, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            tensors = len(group["params"])
            for key, setting in group.items():
                on_host = getattr(setting, "is_cpu", False) and setting.numel() == 1
                value = setting.item() if on_host else setting
                if key == "params" or not isinstance(value, (int, float, tuple, list)):
                    continue
                known = {"lr": rates, "weight_decay": decays}.get(key)
                known = others.setdefault(key, {}) if known is None else known
                if key in ("lr", "weight_decay") or is_float(value):
                    text = number_text(value)
                    known[text] = known.get(text, 0) + tensors
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if hasattr(value, "dtype") and value.dim() and value.is_floating_point():
                    dtype = str(value.dtype).replace("torch.", "")
                    states[dtype] = states.get(dtype, 0) + value.numel()
    facts["learning_rates"], facts["weight_decays"] = rates, decays
    facts["hyperparameters"] = {key: value for key, value in others.items() if value}
    facts["state_dtypes"] = states
    return facts


def is_float(value: Any) -> bool:
    """Return whether a value is a float, or a tuple or list of floats."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(number, float) and not isinstance(number, bool) for number in values)


def number_text(value: Any) -> str:
    """Return a number, or a comma-separated list of numbers, with six significant digits."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return ", ".join(f"{float(number):.6g}" for number in values)


def device_facts(torch: Any) -> dict[str, Any]:
    """Return type, name and peak memory in bytes of torch's device, without synchronizing."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {"device": "cpu"}
    return {
        "device": "cuda",
        "device_name": torch.cuda.get_device_name(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def compiler_facts() -> dict[str, Any]:
    """Return the numbers of compiled graphs and graph breaks; empty if torch.compile is unused."""
    dynamo = sys.modules.get("torch._dynamo")
    counters = getattr(getattr(dynamo, "utils", None), "counters", None)
    if counters is None:
        return {}
    stats = counters.get("stats", {})
    breaks = counters.get("graph_break", {})
    return {"graphs": stats.get("unique_graphs", 0), "graph_breaks": sum(breaks.values())}


def peak_resident_bytes() -> int | None:
    """Return this process's peak resident memory in bytes, or None if it cannot be read."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
