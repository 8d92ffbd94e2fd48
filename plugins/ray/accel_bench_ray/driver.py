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

POLL_SECONDS = 1.0
"""How often the program looks whether its parent is there, and how long it waits to start again."""

REACH_SECONDS = 10.0
"""How long the cluster's head may take to answer at all."""

END_SECONDS = 10.0
"""How long the other actors may take to end once the first one has."""

PASSED = ("ACCEL_BENCH_", "OMP_NUM_THREADS")
"""Beginnings of variables of the parent that its agents get; the others are those of the nodes."""

ADDRESS, SECRET = "ACCEL_BENCH_AGENTS", "ACCEL_BENCH_SECRET"

TOO_LITTLE = "ask for fewer (resources.nodes, resources.devices, launcher.cpus) or add nodes to it"


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
    prefix = "accelerator_type:"
    known = sorted({name for node in nodes for name in node if name.startswith(prefix)})
    words = set(kind.lower().replace("-", " ").split())
    for name in known:
        if words <= set(name.removeprefix(prefix).lower().replace("-", " ").split()):
            return name
    found = ", ".join(name.removeprefix(prefix) for name in known) or "none"
    raise AccelBenchError(
        f"resources.device_type is {kind}, and the types of the Ray cluster's devices are: {found}"
    )


def check_fit(
    bundle: Mapping[str, float], number: int, nodes: Sequence[tuple[str, Mapping[str, float]]]
) -> None:
    """Refuse what the cluster could never reserve. Raises AccelBenchError."""
    able = [name for name, has in nodes if all(has.get(one, 0) >= bundle[one] for one in bundle)]
    if len(able) < number:
        listed = "; ".join(f"{name}: {shown(has)}" for name, has in nodes)
        raise AccelBenchError(
            f"{number} nodes with {shown(bundle)} each are asked for, and {len(able)} nodes of the "
            f"Ray cluster have that ({listed}); {TOO_LITTLE}"
        )


def shown(resources: Mapping[str, float]) -> str:
    """Return `CPU 4, GPU 1`."""
    kinds = {name: resources[name] for name in sorted(resources) if is_shown(name)}
    return ", ".join(f"{name} {number:g}" for name, number in kinds.items()) or "no CPU"


def is_shown(name: str) -> bool:
    """Return whether a resource is one that users know."""
    return name in ("CPU", "GPU") or name.startswith("accelerator_type:")


def reserve(request: Request) -> tuple[Any, dict[str, float]]:
    """Return a placement group that is placed, and its bundle. Raises AccelBenchError."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    bundle = bundle_of(request, [node["Resources"] for node in alive])
    named = [(node["NodeManagerAddress"], node["Resources"]) for node in alive]
    check_fit(bundle, request.nodes, named)
    group = ray.util.placement_group([bundle] * request.nodes, strategy="STRICT_SPREAD")
    until = time.monotonic() + request.seconds
    while not group.wait(POLL_SECONDS):
        if os.getppid() != request.parent:
            raise AccelBenchError("the parent has gone")
        if time.monotonic() > until:
            raise AccelBenchError(
                f"the Ray cluster has not reserved {request.nodes} nodes with {shown(bundle)} each "
                f"in {request.seconds:g} s, since others use them; it has left: "
                f"{shown(ray.available_resources())}; wait, or raise launcher.connect_seconds"
            )
    return group, bundle


class Hosts:
    """The actors of a session, one on each of its nodes."""

    def __init__(self, request: Request, group: Any, bundle: Mapping[str, float]) -> None:
        import ray

        self._request = request
        self._group = group
        self._bundle = bundle
        self._token = secrets.token_hex(8)
        self._secret = os.environ[SECRET]
        self._variables = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(PASSED) and name not in (ADDRESS, SECRET)
        }
        self._parent = (ray.util.get_node_ip_address(), request.port)
        self._running: dict[Any, tuple[int, Any]] = {}
        self._priorities: list[Any] = []

    def run(self) -> int:
        """Keep the actors until the session has ended; return the exit code."""
        import ray

        for node in range(self._request.nodes):
            self._start(node)
        while os.getppid() == self._request.parent:
            done, rest = ray.wait(list(self._running), timeout=POLL_SECONDS)
            for one in done:
                node, _ = self._running.pop(one)
                problem = self._result(one)
                if not problem:
                    ray.wait(rest, num_returns=len(rest), timeout=END_SECONDS) if rest else None
                    return 0
                print(f"node {node}: {problem}", file=sys.stderr, flush=True)
                time.sleep(POLL_SECONDS)
                self._start(node)
            self._notice()
        return 1

    def _start(self, node: int) -> None:
        """Start the actor of a node; Ray places a group's lost bundle on another one."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        devices, size = self._request.devices, self._request.nodes * self._request.devices
        place = PlacementGroupSchedulingStrategy(self._group, node)
        others = {name: self._bundle[name] for name in self._bundle if name not in ("CPU", "GPU")}
        actor = (
            ray.remote(Host)
            .options(
                num_cpus=self._bundle["CPU"],
                num_gpus=self._bundle.get("GPU", 0),
                resources=others,
                scheduling_strategy=place,
            )
            .remote()
        )
        ranks = {
            "ranks": [[node * devices + number, number] for number in range(devices)],
            "size": size,
            "node_key": str(node),
            "launcher": "Ray",
        }
        folder = f"accel-bench-{self._token}-{node}"
        self._priorities.append(actor.take_priority.remote())
        served = actor.serve.remote(self._parent, self._secret, ranks, folder, self._variables)
        self._running[served] = node, actor

    def _result(self, served: Any) -> str:
        """Return what has failed, or why the actor has died; Ray's other errors end the program."""
        import ray

        try:
            return str(ray.get(served))
        except ray.exceptions.RayActorError as error:
            return str(error).strip().partition("\n")[0]

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
