"""The program that speaks to Ray: reserves nodes, and keeps an actor on each while a session lasts.

    python -m accel_bench_ray.driver REQUEST

It ends when the parent lets the agents end, and with the parent. So the parent itself loads no Ray.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from accel_bench.errors import AccelBenchError

from .host import Host
from .request import NOTICE, Request

WAIT_SECONDS = 0.2
"""How often the program looks whether all is reserved."""

POLL_SECONDS = 1.0
"""How often the program looks whether its parent is there, and how long it waits to start again."""

REACH_SECONDS = 10.0
"""How long the cluster's head may take to answer at all."""

END_SECONDS = 10.0
"""How long the other actors may take to end once the first one has."""

PASSED = ("ACCEL_BENCH_", "OMP_NUM_THREADS")
"""Beginnings of variables of the parent that its agents get; the others are those of the nodes."""

ADDRESS, SECRET = "ACCEL_BENCH_AGENTS", "ACCEL_BENCH_SECRET"

TYPE = "accelerator_type:"
"""Beginning of Ray's names of types of devices."""

TOO_LITTLE = (
    "ask for fewer (resources.nodes, resources.devices, launcher.cpus, launcher.at_once) or add "
    "nodes to it"
)


def connect(request: Request) -> None:
    """Join the cluster. Raises AccelBenchError where there is none."""
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
    """Return what one node of the session reserves; `nodes` are the resources of the cluster's.

    Raises AccelBenchError where only the user can say.
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
    """Return Ray's resource of a type of device. Raises AccelBenchError."""
    known = sorted({name for node in nodes for name in node if name.startswith(TYPE)})
    words = set(kind.lower().replace("-", " ").split())
    for name in known:
        if words <= set(name.removeprefix(TYPE).lower().replace("-", " ").split()):
            return name
    found = ", ".join(name.removeprefix(TYPE) for name in known) or "none"
    raise AccelBenchError(
        f"resources.device_type is {kind}, and the types of the Ray cluster's devices are: {found}"
    )


def check_fit(
    bundle: Mapping[str, float], request: Request, nodes: Sequence[tuple[str, Mapping[str, float]]]
) -> None:
    """Refuse what the cluster could never reserve. Raises AccelBenchError."""
    kinds = [name for name in bundle if is_counted(name)]
    rooms = [
        min(int(has.get(name, 0) // bundle[name]) for name in kinds)
        for _, has in nodes
        if all(name in has for name in bundle)
    ]
    groups = len(request.ports)
    # A group has each of its bundles on another node.
    if sum(min(room, groups) for room in rooms) >= groups * request.nodes:
        return
    listed = "; ".join(f"{name}: {shown(has)}" for name, has in nodes)
    times = f"{groups} times " if groups > 1 else ""
    raise AccelBenchError(
        f"{times}{request.nodes} nodes with {shown(bundle)} each are asked for, and the Ray "
        f"cluster has no room for that ({listed}); {TOO_LITTLE}"
    )


def shown(resources: Mapping[str, float]) -> str:
    """Return `CPU 4, GPU 1`."""
    counted = {name: resources[name] for name in sorted(resources) if is_counted(name)}
    kinds = [name.partition(":")[2] for name in resources if name.startswith(TYPE)]
    return ", ".join([*(f"{name} {number:g}" for name, number in counted.items()), *kinds]) or "-"


def is_counted(name: str) -> bool:
    """Return whether a resource is a number of devices."""
    return name in ("CPU", "GPU")


def reserve(request: Request) -> tuple[list[Any], dict[str, float]]:
    """Return placement groups that are placed, and the bundle of each of their nodes.

    Raises AccelBenchError.
    """
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    bundle = bundle_of(request, [node["Resources"] for node in alive])
    check_fit(bundle, request, [(one["NodeManagerAddress"], one["Resources"]) for one in alive])
    bundles = [bundle] * request.nodes
    groups = [ray.util.placement_group(bundles, strategy="STRICT_SPREAD") for _ in request.ports]
    until = time.monotonic() + request.seconds
    while not all(group.wait(0) for group in groups):
        if os.getppid() != request.parent:
            raise AccelBenchError("the parent has gone")
        if time.monotonic() > until:
            raise AccelBenchError(
                f"the Ray cluster has not reserved {len(groups)} x {request.nodes} nodes with "
                f"{shown(bundle)} each in {request.seconds:g} s, since others use them; it has "
                f"left: {shown(ray.available_resources())}; wait, or raise launcher.connect_seconds"
            )
        time.sleep(WAIT_SECONDS)
    if request.device != "cuda":
        refuse_shared_nodes(groups)
    return groups, bundle


def refuse_shared_nodes(groups: Sequence[Any]) -> None:
    """Refuse placement groups that have a node in common: its CPUs are one device.

    Raises AccelBenchError.
    """
    import ray

    tables = [ray.util.placement_group_table(group) for group in groups]
    nodes = [node for table in tables for node in table["bundles_to_node_id"].values()]
    if len(set(nodes)) < len(nodes):
        raise AccelBenchError(
            "Ray has placed runs that go on at once on one node, whose CPUs they would share; set "
            "launcher.cpus to the CPUs of a node divided by resources.devices, or "
            "launcher.at_once=1"
        )


class Hosts:
    """The actors of a session, one on each of its nodes."""

    def __init__(
        self, request: Request, groups: Sequence[Any], bundle: Mapping[str, float]
    ) -> None:
        import ray

        self._request = request
        self._groups = groups
        self._bundle = bundle
        self._token = secrets.token_hex(8)
        self._secret = os.environ[SECRET]
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(PASSED) and name not in (ADDRESS, SECRET)
        }
        self._address = ray.util.get_node_ip_address()
        self._running: dict[Any, tuple[int, int, Any]] = {}
        self._priorities: list[Any] = []

    def run(self) -> int:
        """Keep the actors until the session has ended; return the exit code."""
        import ray

        for group in range(len(self._groups)):
            for node in range(self._request.nodes):
                self._start(group, node)
        while os.getppid() == self._request.parent:
            done, rest = ray.wait(list(self._running), timeout=POLL_SECONDS)
            for one in done:
                group, node, _ = self._running.pop(one)
                problem = self._result(one)
                if not problem:
                    if rest:
                        ray.wait(rest, num_returns=len(rest), timeout=END_SECONDS)
                    return 0
                print(f"node {node}: {problem}", file=sys.stderr, flush=True)
                time.sleep(POLL_SECONDS)
                self._start(group, node)
            self._notice()
        return 1

    def _start(self, group: int, node: int) -> None:
        """Start the actor of a node; Ray places a group's lost bundle on another one."""
        actor = self._new_actor(group, node)
        devices, size = self._request.devices, self._request.nodes * self._request.devices
        ranks = {
            "ranks": [[node * devices + number, number] for number in range(devices)],
            "size": size,
            "node_key": str(node),
            "launcher": "Ray",
        }
        parent = (self._address, self._request.ports[group])
        folder = f"accel-bench-{self._token}-{group}-{node}"
        self._priorities.append(actor.take_priority.remote())
        served = actor.serve.remote(parent, self._secret, ranks, folder, self._variables)
        self._running[served] = group, node, actor

    def _new_actor(self, group: int, node: int) -> Any:
        """Return an actor that has all that its node reserves."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        others = {name: self._bundle[name] for name in self._bundle if not is_counted(name)}
        return (
            ray.remote(Host)
            .options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle.get("GPU", 0),
                resources=others,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._groups[group], node),
            )
            .remote()
        )

    def _result(self, served: Any) -> str:
        """Return what has failed, or why the actor has died; Ray's other errors end the program."""
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

    def _notice(self) -> None:
        """Print once where ranks have a lower priority than other processes."""
        import ray

        done = ray.wait(self._priorities, timeout=0)[0] if self._priorities else []
        for one in done:
            self._priorities.remove(one)
            niceness = self._result(one)
            if niceness not in ("", "0"):
                self._priorities.clear()
                print(
                    f"{NOTICE}Ray gives ranks the low priority {niceness}, so whatever else "
                    "runs on their nodes slows them down; start Ray with RAY_worker_niceness=0",
                    file=sys.stderr,
                    flush=True,
                )


def main() -> int:
    """Serve the request of the command line; return the exit code."""
    request = Request(**json.loads(sys.argv[1]))
    try:
        connect(request)
        return Hosts(request, *reserve(request)).run()
    except AccelBenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
