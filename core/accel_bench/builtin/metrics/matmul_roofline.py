"""`matmul-roofline`: how long the model's matmuls of a step take when nothing else runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from accel_bench import Metric, Options, Plugin, Run, Window, hookimpl


class MatmulRoofline(Plugin[Options]):
    """Times the model's own matmuls after the window, back to back, each in its own dtype.

    `matmul_seconds` / step seconds is the fraction of a step that matmuls of these very shapes
    need: the rest is attention, everything else, and waiting. What it allocates is not in the
    window's peak, which is read before: `metrics: [memory, matmul-roofline]`.
    """

    @hookimpl
    def finish_metrics(self, run: Run, window: Window) -> Iterable[Metric]:
        """Return `matmul_seconds`, for a step; null where the model's matmuls are not known."""
        seconds = None
        if "torch" in sys.modules and hasattr(run.unwrapped_model, "named_parameters"):
            from accel_bench.builtin.metrics import matmul_roofline_impl

            seconds = matmul_roofline_impl.matmul_seconds(run, window)
        yield Metric(
            name="matmul_seconds",
            figure="matmul_seconds",
            value=seconds,
            unit="seconds",
            scope="rank",
            kind="back_to_back",
        )
