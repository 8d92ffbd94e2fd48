"""What every test process gets alike, whichever tests it runs."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import hypothesis

# `pytest --pyargs accel_bench_op.targets` in another folder comes here too, and then reads no
# configuration of ours.
sys.path.insert(0, str(Path(__file__).with_name("tests")))

pytest_plugins = ("suite", "shared_fixtures")

# How long an example takes depends on what else the machine does.
hypothesis.settings.register_profile("shared", deadline=None)
hypothesis.settings.load_profile("shared")

# Test processes stand side by side: each computes with one thread, and none spins while it waits.
# On a busy machine an import may take its time. Inductor would compile programs for ten seconds to
# see which vector instructions there are. Set before anything imports torch; the programs that
# tests start inherit it.
for name, value in {
    "ACCEL_BENCH_IMPORT_SECONDS": "100",
    # No test asks the public hub: what looks a model up there is answered at once.
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TORCHINDUCTOR_VEC_ISA_OK": "0",
}.items():
    os.environ.setdefault(name, value)

# Tables are as wide as COLUMNS says, which readline sets for processes that tests are run in.
os.environ.pop("COLUMNS", None)

# Tests fill no caches of the user's, and find none there.
if "ACCEL_BENCH_CACHE" not in os.environ:
    os.environ["ACCEL_BENCH_CACHE"] = tempfile.mkdtemp(prefix="accel-bench-cache-")
    atexit.register(shutil.rmtree, os.environ["ACCEL_BENCH_CACHE"], ignore_errors=True)

# A shell starts background jobs with Ctrl-C ignored, and the programs that tests start inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
