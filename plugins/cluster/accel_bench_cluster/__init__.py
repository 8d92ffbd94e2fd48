"""Launchers that start ranks on several machines, by an agent process on each machine.

Other launchers may import the names in `__all__`, as docs/launchers.md describes; the modules
change without notice.
"""

# First: on Python 3.10 it takes the working folder off the path of an agent.
import accel_bench as accel_bench
from accel_bench_cluster.agent import end_on_signals, run_agent
from accel_bench_cluster.agents import AgentLauncher, Ended
from accel_bench_cluster.launched_agents import StartedAgents, agent_command, new_secret
from accel_bench_cluster.node_resources import (
    devices_of_nodes,
    largest,
    memory_of_nodes,
    type_of_device,
)
from accel_bench_cluster.wire import SECRET

__all__ = [
    "SECRET",
    "AgentLauncher",
    "Ended",
    "StartedAgents",
    "agent_command",
    "devices_of_nodes",
    "end_on_signals",
    "largest",
    "memory_of_nodes",
    "new_secret",
    "run_agent",
    "type_of_device",
]
