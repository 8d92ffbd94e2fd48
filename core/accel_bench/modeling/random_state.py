"""Draw random numbers that nothing else notices, on whatever device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

from accel_bench.machine.devices import of_torch_type


@contextlib.contextmanager
def keep_random_state(places: Iterable[torch.device] | torch.device | str) -> Iterator[None]:
    """Put the random state of the host, and of these devices, back after the block."""
    given = [torch.device(places)] if isinstance(places, str | torch.device) else [*places]
    with contextlib.ExitStack() as stack:
        for place in given or [torch.device("cpu")]:
            kept = of_torch_type(place.type).keep_random_state(place.index or 0)
            stack.enter_context(kept)
        yield
