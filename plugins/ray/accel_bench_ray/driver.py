"""Program that connects to Ray: it reserves nodes, and keeps an actor on each for a session.

    python -m accel_bench_ray.driver REQUEST

It ends with its agents, or with the parent, which therefore never imports Ray.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from accel_bench_cluster import SECRET

from accel_bench import device_words
from accel_bench.errors import AccelBenchError

from . import Request
from .host import Host

WAIT_SECONDS = 0.2
"""Interval in seconds at which the reservation is polled."""

POLL_SECONDS = 1.0
"""Interval in seconds of checks that the parent lives, and delay before an actor is restarted."""

REACH_SECONDS = 10.0
"""Timeout in seconds of connecting to the cluster's head node."""

END_SECONDS = 10.0
"""Seconds within which all actors must end after the first one."""

PASSED = ("ACCEL_BENCH_CACHE", "ACCEL_BENCH_IMPORT_SECONDS", "OMP_NUM_THREADS")
"""Environment variables that agents get from the parent; other variables are the nodes' own."""

TYPE = "accelerator_type:"
"""Prefix of Ray's names of device models."""

MEMORY = "memory"
"""Ray's resource name of host memory, in bytes."""

TOO_LITTLE = (
    "ask for fewer (resources.nodes, resources.devices, launcher.cpus, launcher.at_once) or add "
    "nodes to it"
)

TOO_LITTLE_MEMORY = (
    "ask for less (resources.host_memory_gib, resources.first_node_host_memory_gib), or state a "
    "node's memory by `ray start --memory`, since Ray's default leaves out its object store"
)


def connect(request: Request) -> None:
    """Connect to the cluster at the request's address. Raises AccelBenchError if this fails."""
    import ray

    own: dict[str, Any] = {}
    if request.address == "local":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        own = {"include_dashboard": False, "object_store_memory": 80_000_000}
    try:
        host, _, port = request.address.rpartition(":")
        if host and port.isdecimal():  # Ray would try for minutes
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        ray.init(request.address, log_to_driver=False, logging_level="error", **own)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        text = str(error).strip().partition("\n")[0]
        raise AccelBenchError(
            f"no Ray cluster can be used at {request.address!r}: {text}; start one by `ray start "
            "--head` here, name it by launcher.address, or have one started for the session by "
            "--set launcher.address=local"
        ) from error


def bundle_of(request: Request, nodes: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the resources to reserve on a node: Ray's resource names with numbers.

    `nodes` are the resources of the cluster's nodes. Raises AccelBenchError if it is ambiguous
    whether to use GPUs, or GPUs of which model.
    """
    if request.device == "auto" and any(node.get("GPU") for node in nodes):
        raise AccelBenchError(
            "resources.device is auto, the machine of this command has no GPU, and the cluster has "
            "some; run with --device cuda or --device cpu"
        )
    if request.device == "cuda":
        bundle = {"CPU": float((request.cpus or 1) * request.devices), "GPU": request.devices}
        if request.device_type:
            bundle[type_resource(request.device_type, nodes)] = 0.001
        return bundle
    # A CPU is a device too: nothing else of Ray's runs beside the ranks.
    whole = min((node["CPU"] for node in nodes if node.get("CPU", 0) >= 1), default=1.0)
    return {"CPU": float(request.cpus * request.devices) if request.cpus else whole}


def type_resource(kind: str, nodes: Sequence[Mapping[str, float]]) -> str:
    """Return Ray's resource name of the device model `kind`.

    `nodes` are the resources of the cluster's nodes. Raises AccelBenchError unless exactly one name
    fits.
    """
    known = sorted({name for node in nodes for name in node if name.startswith(TYPE)})
    words = _words(kind)
    fitting = [name for name in known if words <= _words(name.removeprefix(TYPE))]
    same = [name for name in fitting if words == _words(name.removeprefix(TYPE))]
    if len(names := same or fitting) == 1:
        return names[0]
    listed = ", ".join(name.removeprefix(TYPE) for name in fitting or known) or "none"
    what = (
        "several types of the Ray cluster's devices fit"
        if fitting
        else ("the types of the Ray cluster's devices are")
    )
    raise AccelBenchError(f"resources.device_type is {kind}, and {what}: {listed}")


def _words(kind: str) -> set[str]:
    return {*device_words(kind)}


def bundles_of(request: Request, nodes: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the resources to reserve on each node of a group, first on the node of rank 0.

    `nodes` are the resources of the cluster's nodes. Raises AccelBenchError if it is ambiguous
    whether to use GPUs, or GPUs of which model.
    """
    first, others = ({MEMORY: gib * 2.0**30} if gib else {} for gib in request.memory_gib)
    return [
        {**bundle_of(replace(request, devices=size), nodes), **(others if node else first)}
        for node, size in enumerate(request.devices_of_nodes)
    ]


def check_fit(
    bundles: Sequence[Mapping[str, float]],
    request: Request,
    nodes: Sequence[tuple[str, Mapping[str, float]]],
) -> None:
    """Raise AccelBenchError if a reservation exceeds the cluster's resources.

    `bundles` are the resources to reserve on each node of a group, and `nodes` the name and the
    resources of each node of the cluster. Each bundle needs as many nodes that can provide it as
    there are bundles of at least its size. Bundles that pass may still not fit together: only Ray
    can find that out.
    """
    groups = len(request.ports)
    for bundle in bundles:
        needed = groups * sum(fits(bundle, other) for other in bundles)
        if sum(fits(bundle, has) for _, has in nodes) < needed:
            listed = "; ".join(f"{name}: {shown(has)}" for name, has in nodes)
            times = f"{groups} times " if groups > 1 else ""
            advice = f"{TOO_LITTLE}; {TOO_LITTLE_MEMORY}" if MEMORY in bundle else TOO_LITTLE
            raise AccelBenchError(
                f"{times}{shown_nodes(bundles)} are asked for, no node twice, and the Ray cluster "
                f"has no room for that ({listed}); {advice}"
            )


def fits(bundle: Mapping[str, float], has: Mapping[str, float]) -> bool:
    """Return whether a node, which has the resources `has`, can provide those of a bundle."""
    return all(
        has.get(name, -1.0) >= number if is_counted(name) else name in has
        for name, number in bundle.items()
    )


def shown_nodes(bundles: Sequence[Mapping[str, float]]) -> str:
    """Return the nodes of a group in words, such as `2 nodes with CPU 4 each`.

    `bundles` are the resources of each node.
    """
    kinds = [(shown(bundle), len(list(same))) for bundle, same in itertools.groupby(bundles)]
    if len(kinds) == 1:
        return f"{len(bundles)} nodes with {kinds[0][0]} each"
    first, *others = (f"{number} with {text}" for text, number in kinds)
    return f"{len(bundles)} nodes, {first}, then {', '.join(others)},"


def shown(resources: Mapping[str, float]) -> str:
    """Return resources as text: `CPU 4, GPU 1, memory 16 GiB`."""
    numbers = {name: resources[name] for name in ("CPU", "GPU") if name in resources}
    memory = [f"memory {resources[MEMORY] / 2**30:.4g} GiB"] if MEMORY in resources else []
    kinds = [name.partition(":")[2] for name in resources if name.startswith(TYPE)]
    counted = [f"{name} {number:g}" for name, number in numbers.items()]
    return ", ".join([*counted, *memory, *kinds]) or "-"


def is_counted(name: str) -> bool:
    """Return whether a resource is one that Ray has an option for: CPUs, GPUs or memory."""
    return name in ("CPU", "GPU", MEMORY)


def reserve(request: Request) -> tuple[Any, list[dict[str, float]]]:
    """Reserve nodes; return the ready placement group, and the resources of each node of a group.

    One placement group holds all concurrent runs. Ray puts each bundle on a different node, so that
    no two runs share cores and memory. Raises AccelBenchError if the cluster lacks the resources,
    or does not reserve them in time.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    bundles = bundles_of(request, [node["Resources"] for node in alive])
    check_fit(bundles, request, [(node["NodeManagerAddress"], node["Resources"]) for node in alive])
    groups = len(request.ports)
    placement = ray.util.placement_group(bundles * groups, strategy="STRICT_SPREAD")
    until = time.monotonic() + request.seconds
    while not placement.wait(0):
        if os.getppid() != request.parent:
            raise AccelBenchError("the parent has gone")
        if time.monotonic() > until:
            times = f"{groups} times " if groups > 1 else ""
            raise AccelBenchError(
                f"the Ray cluster has not reserved {times}{shown_nodes(bundles)} in "
                f"{request.seconds:g} s, since others use them; it has left: "
                f"{shown(ray.available_resources())}; wait, or raise launcher.connect_seconds"
            )
        time.sleep(WAIT_SECONDS)
    return placement, bundles


class Hosts:
    """The actors of a session, one on each reserved node."""

    def __init__(
        self, request: Request, placement: Any, bundles: Sequence[Mapping[str, float]]
    ) -> None:
        import ray

        self._request = request
        self._placement = placement
        self._bundles = bundles
        self._token = secrets.token_hex(8)
        self._secret = os.environ[SECRET]
        self._variables = {name: os.environ[name] for name in PASSED if name in os.environ}
        self._address = ray.util.get_node_ip_address()
        self._running: dict[Any, tuple[int, int, Any]] = {}

    def run(self) -> int:
        """Keep the actors running until the session ends; return the program's exit code."""
        import ray

        for group in range(len(self._request.ports)):
            for node in range(self._request.nodes):
                self._start(group, node)
        while os.getppid() == self._request.parent:
            done, rest = ray.wait(list(self._running), timeout=POLL_SECONDS)
            for served in done:
                group, node, _ = self._running.pop(served)
                problem = self._result(served)
                if not problem:
                    if rest:
                        ray.wait(rest, num_returns=len(rest), timeout=END_SECONDS)
                    return 0
                print(f"node {node}: {problem}", file=sys.stderr, flush=True)
                time.sleep(POLL_SECONDS)
                self._start(group, node)
        return 1

    def _start(self, group: int, node: int) -> None:
        """Start the actor of the node with index `node` in the group with index `group`.

        Ray moves a lost bundle to another node.
        """
        actor = self._new_actor(group, node)
        sizes = self._request.devices_of_nodes
        first = sum(sizes[:node])
        ranks = {
            "ranks": [[first + number, number] for number in range(sizes[node])],
            "size": sum(sizes),
            "node_key": str(node),
            "launcher": "Ray",
        }
        parent = (self._address, self._request.ports[group])
        folder = f"accel-bench-{self._token}-{group}-{node}"
        served = actor.serve.remote(parent, self._secret, ranks, folder, self._variables)
        self._running[served] = group, node, actor

    def _new_actor(self, group: int, node: int) -> Any:
        """Return a new actor with all resources that are reserved on its node."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        index, bundle = group * self._request.nodes + node, self._bundles[node]
        others = {name: bundle[name] for name in bundle if not is_counted(name)}
        return (
            ray.remote(Host)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                memory=bundle.get(MEMORY),
                resources=others,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement, index),
            )
            .remote()
        )

    def _result(self, served: Any) -> str:
        """Return an ended actor's error, or why it died; an empty text if the session has ended.

        `served` is Ray's reference to the actor's result. Raises AccelBenchError if the actor
        cannot start.
        """
        import ray

        try:
            return str(ray.get(served))
        except ray.exceptions.RayActorError as error:
            text = str(error).strip()
            if error.actor_init_failed:
                raise AccelBenchError(
                    "the agent cannot start on a node of the Ray cluster: "
                    f"{text.splitlines()[-1]}; install 'accel-bench[ray]' for the Python "
                    "with which Ray was started there"
                ) from error
            return text.partition("\n")[0]


def main() -> int:
    """Reserve the request in the first command-line argument, in JSON; return the exit code."""
    request = Request(**json.loads(sys.argv[1]))
    try:
        connect(request)
        return Hosts(request, *reserve(request)).run()
    except AccelBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
