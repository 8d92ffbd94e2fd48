"""The plugin `torch`: the plain training loop of forward, backward, clip and step."""

from __future__ import annotations

from accel_bench import Engine, Options, Plugin, Run, hookimpl


class Torch(Plugin[Options]):
    """Drives optimizer steps with a plain torch loop."""

    modes = frozenset({"train"})

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import torch before core configures it, so that core counts its memory as imports."""
        from accel_bench_torch import engine_impl  # noqa: F401

    @hookimpl
    def build_engine(self, run: Run) -> Engine:
        """Return the plain training loop."""
        from accel_bench_torch.engine_impl import TorchEngine

        return TorchEngine(run)
