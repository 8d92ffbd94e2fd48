"""The device type `cpu`: the host computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import ClassVar

from accel_bench import DeviceType, Machine


class CPU(DeviceType):
    """A CPU: it computes before a call returns, in the host's memory."""

    torch_type = "cpu"
    label = "CPU"
    preference = 0
    on_host = True
    autocast_dtypes: ClassVar[frozenset[str]] = frozenset({"bfloat16"})

    def find(self, machine: Machine) -> Sequence[str]:
        """Return the processor: every machine has one."""
        return [machine.processor]

    def is_started(self) -> bool:
        """Return false: torch has no allocator of its own there that could be asked."""
        return False

    def use(self, index: int) -> None:
        """Do nothing: there is one."""

    def identify(self, index: int) -> tuple[str, str]:
        """Return `cpu`; the machine's description has the processor's name."""
        return "cpu", ""

    def synchronize(self) -> None:
        """Do nothing: what was called has been computed."""

    def make_event(self) -> None:
        """Return None: the host's clock is the device's."""

    @contextlib.contextmanager
    def keep_random_state(self, index: int) -> Iterator[None]:
        """Put the host's random state back after the block."""
        import torch

        with torch.random.fork_rng(devices=[]):
            yield
