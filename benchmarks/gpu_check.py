"""Check the engine on a device: the loss falls, and nothing synchronizes in the window."""

from __future__ import annotations

import contextlib
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.built_run import BuiltRun, build_run
from benchmarks.engine import TINY
from benchmarks.watched_clock import WatchedClock

STEPS = 20
"""Steps of each window."""


def check_engine(device: str) -> dict[str, Any]:
    """Train a small model and report losses and synchronisations.

    torch's `set_sync_debug_mode` reports the implicit ones: values that are read, and copies that
    wait. Those of the model itself appear without the engine too; the rest is the harness's.
    Raises RuntimeError when the device is CUDA and there is none.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch.cuda.is_available() is False")
    with build_run(TINY, {"resources.device": device}) as built:
        clock = WatchedClock(built.clock())
        window = built.take_measured_steps(STEPS, clock).window()
        losses = [sample.loss for sample in (*window.warmup, *window.samples)]
        first, last = losses[0], losses[-1]
        in_window, at_end = clock.waits("synchronize")
        with_engine, without = implicit_with_engine(built), implicit_without(built)
        return {
            "device": torch.cuda.get_device_name() if device == "cuda" else device,
            "torch": torch.__version__,
            "losses": losses,
            "loss_first": first,
            "loss_last": last,
            "loss_falls": first is not None and last is not None and last < first,
            "in_window": in_window,
            "at_its_end": at_end,
            "implicit_engine": with_engine,
            "implicit_bare": without,
            "harness_adds_synchronisations": in_window + max(0, with_engine - without),
            "error_mode": error_mode(built) if device == "cuda" else "not tested: no GPU",
        }


def implicit_with_engine(built: BuiltRun) -> int:
    """Count implicit synchronisations in a window of the engine."""
    with recorded() as messages:
        built.take_measured_steps(STEPS, guarded(built, "warn"))
    return synchronising(messages)


def implicit_without(built: BuiltRun) -> int:
    """Count implicit synchronisations in as many bare steps."""
    with recorded() as messages:
        debug_mode(built)("warn")
        try:
            built.take_bare_steps(STEPS)
        finally:
            debug_mode(built)("default")
    return synchronising(messages)


def error_mode(built: BuiltRun) -> str:
    """Return `no error`, or the error of the first implicit synchronisation in a window."""
    try:
        built.take_measured_steps(STEPS, guarded(built, "error"))
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        debug_mode(built)("default")
    return "no error"


def guarded(built: BuiltRun, mode: str) -> WatchedClock:
    """Return a clock that turns torch's debug mode on for as long as the window is open."""
    switch = debug_mode(built)
    return WatchedClock(built.clock(), lambda opened: switch(mode if opened else "default"))


def debug_mode(built: BuiltRun) -> Callable[[str], None]:
    """Return the setter of torch's debug mode; a no-op on a device that never synchronizes."""
    if built.run.device.type != "cuda":
        return lambda _: None
    switch: Callable[[str], None] = torch.cuda.set_sync_debug_mode
    return switch


@contextlib.contextmanager
def recorded() -> Iterator[list[warnings.WarningMessage]]:
    """Record every warning, not only the first of its kind."""
    with warnings.catch_warnings(record=True) as messages:
        warnings.simplefilter("always")
        yield messages


def synchronising(messages: list[warnings.WarningMessage]) -> int:
    """Count the warnings about a synchronisation."""
    return sum("synchronizing CUDA operation" in str(found.message) for found in messages)


if __name__ == "__main__":
    print(json.dumps(check_engine(sys.argv[1]), indent=1))
