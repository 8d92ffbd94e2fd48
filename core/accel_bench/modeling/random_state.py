"""Preservation of random states, on all kinds of devices."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator

import numpy
import torch

from accel_bench.machine.devices import of_torch_type
from accel_bench.modeling.tensors import device_index


@contextlib.contextmanager
def keep_random_state(places: Iterable[torch.device] | torch.device | str) -> Iterator[None]:
    """Restore the random state of the host, and of the given devices, after the block.

    The host's state includes torch's, Python's, and numpy's global state (used by SpecAugment).
    """
    python_state, numpy_state = random.getstate(), numpy.random.get_state()
    given = [torch.device(places)] if isinstance(places, str | torch.device) else [*places]
    with contextlib.ExitStack() as stack:
        for place in given or [torch.device("cpu")]:
            kept = of_torch_type(place.type).keep_random_state(device_index(place))
            stack.enter_context(kept)
        stack.callback(random.setstate, python_state)
        stack.callback(numpy.random.set_state, numpy_state)
        yield
