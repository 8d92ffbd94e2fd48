"""What tests of core and of other folders take of the kit beyond what it promises."""

from accel_bench_testing import declared, in_process
from accel_bench_testing.clause_process import warnings_ignored
from accel_bench_testing.in_process import EndedRank, run_in_process
from accel_bench_testing.running import run_or_skip
from accel_bench_testing.tiny import shrunk, this_machine

__all__ = [
    "EndedRank",
    "declared",
    "in_process",
    "run_in_process",
    "run_or_skip",
    "shrunk",
    "this_machine",
    "warnings_ignored",
]
