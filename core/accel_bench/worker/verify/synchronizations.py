"""Counting of device synchronizations in a warm-up step, without those of the stopwatch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

MESSAGE = "called a synchronizing CUDA operation"
"""Beginning of torch's warning of a synchronization."""

QUIET, WARN = 0, 1
"""Values of torch's synchronization debug mode: silent, and a warning for each."""


class SynchronizationCounter:
    """Counter of CUDA synchronizations in each warm-up step; it does nothing on other devices.

    A scaler that asks whether to skip a step, or a filter that looks for NaN, waits for the device
    in every step. Torch warns only of synchronizations in its own code. Those of the stopwatch are
    not counted.
    """

    def __init__(self, device_type: str) -> None:
        self._active = device_type == "cuda"
        self._counts: list[int] = []
        self._count = 0
        self._warnings: Any = None

    def start(self) -> None:
        """Let torch warn of each synchronization, and start counting the warnings."""
        if not self._active:
            return
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.filterwarnings("always", message=MESSAGE)
        self._show = warnings.showwarning
        warnings.showwarning = self._see
        self._set(WARN)

    def between_laps(self, lap: Callable[..., None]) -> Callable[..., None]:
        """Return a function that calls `lap`, which ends a step, without counting meanwhile."""
        if not self._active:
            return lap

        def quiet_lap(*arguments: Any) -> None:
            self._set(QUIET)
            self._counts.append(self._count)
            self._count = 0
            lap(*arguments)
            if self._warnings is not None:
                self._set(WARN)

        return quiet_lap

    def stop(self) -> None:
        """Stop counting; restore torch's debug mode and Python's treatment of warnings."""
        if self._warnings is not None:
            self._set(QUIET)
            self._warnings.__exit__(None, None, None)
            self._warnings = None

    def per_step(self) -> int | None:
        """Return the number of synchronizations in the last warm-up step; None without CUDA.

        Earlier steps include work that is done once.
        """
        return self._counts[-1] if self._counts else None

    def _see(self, message: Any, *arguments: Any, **keywords: Any) -> None:
        if str(message).startswith(MESSAGE):
            self._count += 1
        else:
            self._show(message, *arguments, **keywords)

    @staticmethod
    def _set(mode: int) -> None:
        import torch

        torch.cuda.set_sync_debug_mode(mode)
