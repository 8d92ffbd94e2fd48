"""What follows from `mode: inference`: plugins of slots, and the length and number of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_bench.documents.validate import LocatedError
from accel_bench.scenario.settings import Inference
from accel_bench.scenario.uses import slot_defaults

SAME = {
    "prompt_tokens": ("data", "sequence_length"),
    "batch_size": ("train", "micro_batch_size"),
}
"""Settings of `inference`, and those of data and training that are the same: plugins of data read
these."""


def complete_inference(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the work with what inference decides; that of training as it is.

    Raises LocatedError where a setting of `data` or `train` says otherwise.
    """
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
    """Return a setting of inference."""
    asked = work.get("inference") or {}
    usual = Inference.model_fields[name].default
    return asked.get(name, usual) if isinstance(asked, Mapping) else getattr(asked, name)


def _with(section_as_written: Any, section: str, key: str, asked: tuple[str, Any]) -> Any:
    """Return a section with a key as inference asks for it."""
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
