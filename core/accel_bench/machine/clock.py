"""Clock functions of the standard library, imported here before any plugin is imported.

A plugin that later replaces functions of `time` has no effect on timings.
"""

from time import monotonic, perf_counter_ns

__all__ = ["monotonic", "perf_counter_ns"]
