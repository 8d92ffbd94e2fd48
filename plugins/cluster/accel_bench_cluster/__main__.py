"""Program of an agent, the process that starts ranks on its machine.

    python -m accel_bench_cluster

`ACCEL_BENCH_AGENTS` names the parent's host and port, `ACCEL_BENCH_SECRET` holds the secret.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from accel_bench import read_placement
from accel_bench.errors import AccelBenchError
from accel_bench_cluster.agent import end_on_signals, ranks_of, run_agent
from accel_bench_cluster.launched_agents import LOST, PARENT, UNSET
from accel_bench_cluster.wire import shared_secret


def main() -> int:
    """Run an agent configured by environment variables, and return its exit code: the parent's
    choice, or the code of an error, which is printed."""
    end_on_signals()
    host, _, port = os.environ[PARENT].rpartition(":")
    host = host or os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
    for name in os.environ.pop(UNSET, "").split():
        os.environ.pop(name, None)
    try:
        return run_agent(
            (host, int(port)), shared_secret(), ranks_of(read_placement(os.environ)), 60.0
        )
    except AccelBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        if path := os.environ.get(LOST):
            Path(path).touch()
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
