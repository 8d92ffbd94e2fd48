"""Hooks into torch that notify the observer of backward passes, losses and batches."""

from __future__ import annotations

from typing import Any

from .batches import Reading
from .watch import Watch


def untraced(torch: Any, method: Any) -> Any:
    """Return a wrapper of a method that torch's compiler does not trace, nor what it calls."""

    def call_method(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    without_compiler = torch._disable_dynamo(call_method)  # This takes 2 microseconds a call.
    compiler = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: True)

    def call(*args: Any, **kwargs: Any) -> Any:
        return without_compiler(*args, **kwargs) if compiler() else method(*args, **kwargs)

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
        except Exception:
            watch.loss_unseen = watch.tokens_unseen = "a backward pass failed"
            raise
        finally:
            watch.depth -= 1

    backward.__wrapped__ = own  # type: ignore[attr-defined]
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    backward.__doc__, backward.__name__ = own.__doc__, own.__name__
    torch.autograd.backward = backward


def watch_scaler(torch: Any, watch: Watch) -> None:
    """Patch torch's gradient scaler to attach the unscaled loss to each scaled loss."""
    scaler = torch.amp.grad_scaler.GradScaler

    def patch(kind: Any) -> None:
        own = kind.__dict__.get("scale")
        if own is None:
            return

        def scale(self: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            scaled = own(self, outputs, *args, **kwargs)
            if scaled is not outputs:
                watch.scaled = True
                if isinstance(scaled, torch.Tensor) and isinstance(outputs, torch.Tensor):
                    scaled._accel_bench_unscaled = outputs.detach()
            return scaled

        scale.__wrapped__, scale.__doc__ = own, own.__doc__  # type: ignore[attr-defined]
        kind.scale = scale

    def patch_subclass(kind: Any, /, **kwargs: Any) -> None:
        super(scaler, kind).__init_subclass__(**kwargs)
        patch(kind)

    patch(scaler)
    scaler.__init_subclass__ = classmethod(patch_subclass)  # FSDP's has a `scale` of its own.


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


def watch_loader(watch: Watch) -> None:
    """Patch the iterators of DataLoader to notify the observer of their batches."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    own = kind.__next__

    def fetch(self: Any) -> Any:
        reading = self.__dict__.get("_accel_bench_reading")
        if reading is None:
            reading = self._accel_bench_reading = Reading(self)
        watch.read(reading)
        try:
            batch = own(self)
        except StopIteration:
            reading.stopped = True
            raise
        reading.stopped = False  # Persistent workers have one iterator for all epochs.
        watch._guarded("tokens", watch.fetched, reading, batch)
        return batch

    kind.__next__ = kind.next = fetch
