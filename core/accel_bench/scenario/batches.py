"""Settings that follow from others: batch sizes, by micro batch x accumulation x groups of devices
= global batch; in `mode: inference` also plugins, sequence length and micro-batch size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from accel_bench.documents.validate import LocatedError
from accel_bench.scenario.settings import Inference
from accel_bench.scenario.uses import slot_defaults

KEYS = ("micro_batch_size", "gradient_accumulation", "global_batch_size")
"""Batch sizes of `train`, of which two give the third."""

TOTAL = ("train", "global_batch_size")

SAME = {
    "prompt_tokens": ("data", "sequence_length"),
    "batch_size": ("train", "micro_batch_size"),
}
"""Settings of `inference`, each with the setting of `data` or `train` that data plugins read."""


def count_devices(resources: Any) -> int | None:
    """Return the number of devices on all nodes; None for invalid numbers in `resources`."""
    if not isinstance(resources, dict):
        return None
    devices, nodes = (resources.get(key, 1) for key in ("devices", "nodes"))
    listed = resources.get("devices_by_node")
    sizes = listed if isinstance(listed, list | tuple) and listed else [devices]
    if not all(isinstance(size, int) and size > 0 for size in (*sizes, nodes)):
        return None
    return int(sum(sizes) if listed else devices * nodes)


def complete_batch(train: Any, data_parallel: int) -> Any:
    """Return the settings `train` with the missing one of the three batch sizes filled in.

    global_batch_size = micro_batch_size x gradient_accumulation x `data_parallel`, the number of
    groups of devices that take batches of their own. Micro batch and accumulation default to 1.
    Invalid sizes stay unchanged. Raises LocatedError if the numbers contradict one another.
    """
    given = _given(train)
    if given is None:
        return train
    micro, accumulation, total = (given.get(key) for key in KEYS)
    if total is not None and micro is None:
        accumulation = accumulation or 1
        parts = f"{accumulation} x {data_parallel} devices"
        micro = _divided(total, accumulation * data_parallel, parts)
    elif total is not None and accumulation is None:
        assert micro is not None
        accumulation = _divided(
            total, micro * data_parallel, f"micro batch {micro} x {data_parallel} devices"
        )
    micro, accumulation = micro or 1, accumulation or 1
    product = micro * accumulation * data_parallel
    if total is not None and total != product:
        raise LocatedError(
            TOTAL,
            f"train.global_batch_size is {total}, but micro_batch_size {micro} x "
            f"gradient_accumulation {accumulation} x {data_parallel} devices = {product}; "
            "give two of the three",
        )
    sizes = dict(zip(KEYS, (micro, accumulation, product), strict=True))
    return {**train, **sizes}


def _divided(total: int, parts: int, what: str) -> int:
    if total % parts:
        problem = f"train.global_batch_size {total} cannot be divided by {what} = {parts}"
        raise LocatedError(TOTAL, problem)
    return total // parts


def fewer_groups(work: Mapping[str, Any]) -> int | None:
    """Return the largest number of groups of devices among which a batch can be divided, if that is
    less than the number of devices. `work`, a scenario as written, states the batch. The result is
    None if each device can be a group, if `work` states the number of groups, or if none fits."""
    resources, given = work.get("resources") or {}, _given(work.get("train"))
    devices = count_devices(resources)
    if devices is None or not given or resources.get("data_parallel") is not None:
        return None
    *parts, total = (given.get(key) for key in KEYS)
    samples, rest = divmod(total or 0, math.prod(part or 1 for part in parts))
    if rest or not samples:
        return None
    groups = samples if all(parts) else math.gcd(samples, devices)
    return groups if groups < devices and devices % groups == 0 else None


def _given(train: Any) -> dict[str, int] | None:
    """Return the batch sizes that `train` states, or None if any is not a positive number."""
    if not isinstance(train, dict):
        return None
    given = {key: train[key] for key in KEYS if train.get(key) is not None}
    return given if all(isinstance(size, int) and size > 0 for size in given.values()) else None


def complete_inference(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the work `raw` with settings that follow from `inference`; a training is
    unchanged. Raises LocatedError if a setting of `data` or `train` contradicts them."""
    done = dict(raw)
    if raw.get("mode") != "inference":
        return done
    for slot, plugin in slot_defaults().inference.items():
        use = done.get(slot)
        if use is None:
            done[slot] = plugin
        elif isinstance(use, Mapping) and "use" not in use:
            done[slot] = {"use": plugin, **use}
    for name, (section, key) in SAME.items():
        done[section] = _with(done.get(section), section, key, (name, _asked(done, name)))
    return done


def _asked(work: Mapping[str, Any], name: str) -> Any:
    """Return the value of the setting `inference.<name>` in a work, or the setting's default."""
    asked = work.get("inference") or {}
    usual = Inference.model_fields[name].default
    return asked.get(name, usual) if isinstance(asked, Mapping) else getattr(asked, name)


def _with(section_as_written: Any, section: str, key: str, asked: tuple[str, Any]) -> Any:
    """Return a section of a work with `key` set to the value that `inference` requires. `asked` is
    the name and value of that setting of `inference`. Raises LocatedError if the section states
    another value."""
    name, value = asked
    written = section_as_written or {}
    if isinstance(written, str):
        written = {"use": written}
    if not isinstance(written, Mapping):
        return written
    if written.get(key, value) != value:
        raise LocatedError(
            (section, key),
            f"{section}.{key} is {written[key]}, and inference.{name} is {value}: in mode "
            f"inference, set inference.{name} alone",
        )
    return {**written, key: value}
