"""A Ray cluster of two workers on this machine, as a program: it ends at the end of its input.

    python ray_cluster.py FOLDER

It prints the cluster's address. The head has no CPU, and each worker has one: an actor that
reserves one has a worker for itself. The workers state different amounts of memory.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
os.environ |= {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}

from ray.cluster_utils import Cluster

MEMORY_GIB = (2, 4)
"""Memory of the workers."""

LEAN = {"object_store_memory": 80_000_000, "include_log_monitor": False, "no_monitor": True}


def main(folder: str) -> None:
    """Start the cluster, and end it when this program's input ends."""
    os.environ["RAY_TMPDIR"] = folder
    Path(folder, "ray").mkdir()
    head = {"num_cpus": 0, "memory": 0, "include_dashboard": False, **LEAN}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for gib in MEMORY_GIB:
            cluster.add_node(wait=False, num_cpus=1, memory=gib * 2**30, **LEAN)
        cluster.wait_for_nodes()
        print(cluster.address, flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
