"""Hooks into torch that notify the observer of backward passes, losses and batches."""

from __future__ import annotations

from typing import Any

from .batches import Reading
from .watch import Watch


def untraced(function: Any) -> Any:
    """Return a wrapper of a function that torch's compiler does not trace."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def watch_backward(torch: Any, watch: Watch) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, to notify the observer."""
    own = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.depth == 0:
            watch._guarded("loss", watch.backward, tensors)
        watch.depth += 1
        try:
            return own(tensors, *args, **kwargs)
        finally:
            watch.depth -= 1

    backward.__wrapped__ = own  # type: ignore[attr-defined]
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    backward.__doc__, backward.__name__ = own.__doc__, own.__name__
    torch.autograd.backward = backward


def watch_scaler(torch: Any, watch: Watch) -> None:
    """Patch torch's gradient scaler to attach the unscaled loss to each scaled loss."""
    kind = torch.amp.grad_scaler.GradScaler
    own = kind.scale

    def scale(self: Any, outputs: Any) -> Any:
        scaled = own(self, outputs)
        if isinstance(scaled, torch.Tensor) and scaled is not outputs:
            scaled._accel_bench_unscaled = outputs.detach()
            watch.scaled = True
        return scaled

    scale.__wrapped__, scale.__doc__ = own, own.__doc__  # type: ignore[attr-defined]
    kind.scale = scale


def watch_autocast(torch: Any, watch: Watch) -> None:
    """Patch torch's autocast to record its dtype when gradients are enabled."""
    kind = torch.amp.autocast_mode.autocast
    own = kind.__enter__

    def enter(self: Any) -> Any:
        if getattr(self, "_enabled", False) and torch.is_grad_enabled():
            watch.autocast = str(getattr(self, "fast_dtype", "")).removeprefix("torch.")
        return own(self)

    enter.__wrapped__, enter.__doc__ = own, own.__doc__  # type: ignore[attr-defined]
    kind.__enter__ = enter


def watch_loader(torch: Any, watch: Watch) -> None:
    """Patch the iterators of DataLoader to notify the observer of their batches."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    own = kind.__next__

    def fetch(self: Any) -> Any:
        reading = self.__dict__.get("_accel_bench_reading")
        if reading is None:
            reading = self._accel_bench_reading = Reading()
        watch.read(reading)
        try:
            batch = own(self)
        except StopIteration:
            reading.ended = True
            raise
        watch._guarded("tokens", watch.fetched, reading, batch)
        return batch

    kind.__next__ = kind.next = fetch
