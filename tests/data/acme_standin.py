"""The device type `standin`: torch's own device for backends from outside, which computes on a CPU.

It is made as docs/devices.md says, by an author who is not ours. Torch sees another device: tensors
on it cannot be read without a copy, and every operation goes through the kernel below. It counts
what it is asked for, and writes that to the file that ACME_STANDIN_CALLS names.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from pathlib import Path

from accel_bench import DeviceType

CALLS: Counter[str] = Counter()

VIEWS = (
    "diagonal",
    "expand",
    "permute",
    "select.int",
    "slice.Tensor",
    "split.Tensor",
    "squeeze",
    "squeeze.dim",
    "t",
    "transpose.int",
    "unbind.int",
    "unsqueeze",
)
"""Operations that torch would work out from strides, which here are those of the host's tensors."""


class Standin(DeviceType):
    """A CPU with another name, with a clock, memory and random state of its own."""

    torch_type = "standin"
    label = "stand-in"
    preference = 5
    autocast_dtypes = frozenset({"bfloat16"})

    def find(self, machine):
        """Return as many as a variable says: there is no hardware to look for."""
        count = int(os.environ.get("ACME_STANDINS", "1"))
        return [f"Acme Stand-in {number}" for number in range(count)]

    def prepare(self):
        """Register the backend, as `import torch_acme` would."""
        register()


class Event:
    """A point in the device's work; as CUDA's, it has no time before that was waited for."""

    waited = 0

    def __init__(self, enable_timing=False):
        self.nanoseconds = 0

    def record(self):
        CALLS["record"] += 1
        self.nanoseconds = time.perf_counter_ns()

    def elapsed_time(self, later):
        if max(self.nanoseconds, later.nanoseconds) > Event.waited:
            raise RuntimeError("the work up to this event is not done")
        return (later.nanoseconds - self.nanoseconds) / 1e6


class Properties:
    name = "Acme Stand-in 0"
    uuid = "ACME-0"


class Backend:
    """What becomes `torch.standin`."""

    Event = Event

    def __init__(self):
        self.started = False
        self.held = self.peak = 0

    def is_initialized(self):
        return self.started

    def is_available(self):
        return True

    def _lazy_init(self):
        self.started = True

    def _is_in_bad_fork(self):
        return False

    def current_device(self):
        return 0

    def device_count(self):
        return 1

    def set_device(self, index):
        CALLS["set_device"] += 1
        self.started = True

    def get_device_properties(self, index):
        return Properties

    def synchronize(self):
        CALLS["synchronize"] += 1
        Event.waited = time.perf_counter_ns()
        if target := os.environ.get("ACME_STANDIN_CALLS"):
            Path(target).write_text(json.dumps(CALLS))

    def get_amp_supported_dtype(self):
        import torch

        return [torch.bfloat16]

    def memory_stats(self):
        CALLS["memory_stats"] += 1
        return {
            "allocated_bytes.all.current": self.held,
            "allocated_bytes.all.peak": self.peak,
            "reserved_bytes.all.current": self.held,
            "reserved_bytes.all.peak": self.peak,
            "num_alloc_retries": 0,
        }

    def reset_peak_memory_stats(self):
        CALLS["reset_peak_memory_stats"] += 1
        self.peak = self.held

    def mem_get_info(self):
        return 2**30 - self.held, 2**30

    def manual_seed_all(self, seed):
        CALLS["manual_seed_all"] += 1

    def get_rng_state(self, device=0):
        import torch

        CALLS["get_rng_state"] += 1
        return torch.get_rng_state()

    def set_rng_state(self, state, device=0):
        import torch

        torch.set_rng_state(state)

    def hold(self, size):
        self.held += size
        self.peak = max(self.peak, self.held)


BACKEND = Backend()


def register():
    """Make torch's device for backends from outside this one, with a kernel for all operations."""
    import torch
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend("standin", BACKEND)
    content = {}  # Tensors on the host, by the storage that stands for them on the device.

    def up(host):
        made = torch._C._acc.create_empty_tensor(tuple(host.shape), host.dtype)
        storage = made.untyped_storage()
        content[storage._cdata] = host, storage
        BACKEND.hold(host.nbytes)
        return made

    def down(value):
        if isinstance(value, torch.Tensor) and value.device.type == "standin":
            # Views that torch makes by itself share the storage, and have a shape of their own.
            return content[value.untyped_storage()._cdata][0].reshape(value.shape)
        if isinstance(value, torch.device) and value.type == "standin":
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return type(value)(map(down, value))
        return value

    def compute(operator, *given, **named):
        CALLS["operations"] += 1
        arguments = operator._schema.arguments
        values = {**dict(zip((a.name for a in arguments), given, strict=False)), **named}
        changes = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
        written = [values[name] for name in changes if values.get(name) is not None]
        names = {key: down(value) for key, value in named.items()}
        found = operator(*map(down, given), **names)
        for key, value in named.items():
            if key in changes and names[key].shape != value.shape:
                value.data = up(names[key])  # It was empty, to be made as large as is needed.
        if written:
            if not operator._schema.returns:
                return None
            return written[0] if len(operator._schema.returns) == 1 else tuple(written)
        if isinstance(found, (list, tuple)):
            return type(found)(up(one) if isinstance(one, torch.Tensor) else one for one in found)
        return up(found) if isinstance(found, torch.Tensor) else found

    def empty(size, dtype=None, **_):
        return up(torch.empty(size, dtype=dtype or torch.get_default_dtype(), device="cpu"))

    def empty_strided(size, stride, dtype=None, **_):
        return empty(size, dtype)

    def copy_from(source, target, non_blocking=False):
        down(target).copy_(down(source))
        return target

    def to_copy(source, *, dtype=None, layout=None, device=None, **_):
        found = down(source).to(dtype=dtype or source.dtype, copy=True)
        return found if device is not None and device.type == "cpu" else up(found)

    def arange(*bounds, dtype=None, layout=None, device=None, pin_memory=None):
        return up(torch.arange(*bounds, dtype=dtype, device="cpu"))

    everything = torch.library.Library("_", "IMPL")
    everything.fallback(compute, "PrivateUse1")
    aten = torch.library.Library("aten", "IMPL")

    def view(given, shape):
        return up(down(given).reshape(shape))  # Torch takes all tensors here for contiguous.

    def squeeze_in_place(given, dim):
        given.data = up(down(given).squeeze(dim))
        return given

    for name, kernel in (
        ("squeeze_.dim", squeeze_in_place),
        ("view", view),
        ("empty.memory_format", empty),
        ("empty_strided", empty_strided),
        ("arange", arange),
        ("arange.start", arange),
        ("arange.start_step", arange),
        ("_copy_from", copy_from),
        ("_to_copy", to_copy),
    ):
        aten.impl(name, kernel, "PrivateUse1")
    for name in VIEWS:
        operator, _, overload = name.partition(".")
        kernel = functools.partial(
            compute, getattr(getattr(torch.ops.aten, operator), overload or "default")
        )
        aten.impl(name, kernel, "PrivateUse1")
    register.kept = everything, aten
