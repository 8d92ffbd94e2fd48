"""`torch`: the plain training loop: forward, backward, clip, step, over micro-batches."""

from __future__ import annotations

from accel_bench import Engine, Options, Plugin, Run, hookimpl


class Torch(Plugin[Options]):
    """Drives optimizer steps with a plain torch loop."""

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the loop."""
        from accel_bench.builtin.engines.torch_engine_impl import TorchEngine

        return TorchEngine(run)
