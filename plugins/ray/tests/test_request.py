"""Reservations of the launcher `ray`, and refusals before or by a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accel_bench_ray import RayAgents, Request
from accel_bench_ray.driver import PASSED, Hosts, bundle_of, bundles_of, check_fit
from cli.program import call
from launched import Launched

from accel_bench.errors import AccelBenchError

RAY = ("--set", "launcher.use=ray", "-q", "--oversubscribe")

NODES = [
    {"CPU": 16.0, "GPU": 4.0, "accelerator_type:A100-40G": 1.0, "node:10.0.0.1": 1.0},
    {"CPU": 8.0, "GPU": 2.0, "accelerator_type:L4": 1.0, "node:10.0.0.2": 1.0},
    {"memory": 1e9, "node:10.0.0.3": 1.0},
]
"""Resources of a cluster's nodes, as Ray lists them."""


def request(**changes: Any) -> Request:
    """Return a request for one node with two GPUs."""
    nodes, devices = changes.get("nodes", 1), changes.get("devices", 2)
    fields = {
        "address": "auto",
        "nodes": nodes,
        "devices": devices,
        "devices_of_nodes": (devices,) * nodes,
        "device": "cuda",
        "device_type": None,
        "cpus": None,
        "memory_gib": (None, None),
        "seconds": 1.0,
        "parent": 1,
        "ports": (1,),
    }
    return Request(**{**fields, **changes})


def test_a_node_reserves_its_devices() -> None:
    assert bundle_of(request(), NODES) == {"CPU": 2, "GPU": 2}
    assert bundle_of(request(cpus=3), NODES) == {"CPU": 6, "GPU": 2}
    typed = {"CPU": 2, "GPU": 2, "accelerator_type:A100-40G": 0.001}
    assert bundle_of(request(device_type="a100"), NODES) == typed
    assert bundle_of(request(device="cpu"), NODES) == {"CPU": 8}
    assert bundle_of(request(device="cpu", cpus=3), NODES) == {"CPU": 6}
    assert bundle_of(request(device="auto"), [{"CPU": 4.0}]) == {"CPU": 4}


def test_what_a_cluster_cannot_have_is_refused_at_once() -> None:
    with pytest.raises(AccelBenchError, match=r"types of the Ray cluster's devices are: A100-40G"):
        bundle_of(request(device_type="h100"), NODES)
    with pytest.raises(AccelBenchError, match=r"--device cuda or --device cpu"):
        bundle_of(request(device="auto"), NODES)
    named = [(f"10.0.0.{number}", node) for number, node in enumerate(NODES, 1)]
    twice = request(ports=(1, 2))
    check_fit([{"CPU": 4, "GPU": 2}] * 2, request(nodes=2), named)
    check_fit([{"CPU": 4, "GPU": 2}], twice, named)
    check_fit([{"CPU": 8}], twice, named)
    with pytest.raises(AccelBenchError, match=r"2 nodes with CPU 4, GPU 4 each .* no room"):
        check_fit([{"CPU": 4, "GPU": 4}] * 2, request(nodes=2), named)
    with pytest.raises(AccelBenchError, match=r"3 times 1 nodes .*, no node twice, .* no room"):
        check_fit([{"CPU": 1, "GPU": 1}], request(ports=(1, 2, 3)), named)
    with pytest.raises(AccelBenchError, match=r"2 times 1 nodes with CPU 16 .*launcher.at_once"):
        check_fit([{"CPU": 16}], twice, named)


def test_a_type_that_fits_two_kinds_is_refused_with_both_names() -> None:
    kinds = ["A100-40G", "A100-80G", "L4", "L40"]
    nodes = [{"CPU": 8.0, "GPU": 2.0, f"accelerator_type:{kind}": 1.0} for kind in kinds]
    with pytest.raises(AccelBenchError, match=r"a100, and several types .* A100-40G, A100-80G$"):
        bundle_of(request(device_type="a100"), nodes)
    for kind in ("a100 80g", "A100-80GB", "A100 80 GB"):
        assert "accelerator_type:A100-80G" in bundle_of(request(device_type=kind), nodes)
    assert "accelerator_type:L4" in bundle_of(request(device_type="l4"), nodes)


def test_the_first_node_of_a_group_reserves_memory_of_its_own() -> None:
    asked = request(device="cpu", cpus=1, nodes=3, memory_gib=(8, 2))
    bundles = bundles_of(asked, NODES)
    assert bundles == [{"CPU": 2, "memory": 8 * 2**30}, *[{"CPU": 2, "memory": 2 * 2**30}] * 2]
    assert bundles_of(request(cpus=1, nodes=2), NODES) == [{"CPU": 2, "GPU": 2}] * 2
    assert bundles_of(request(cpus=1, memory_gib=(8, None)), NODES) == [
        {"CPU": 2, "GPU": 2, "memory": 8 * 2**30}
    ]


def test_each_node_of_a_group_reserves_its_own_devices() -> None:
    asked = request(nodes=2, devices=4, devices_of_nodes=(4, 2))
    bundles = bundles_of(asked, NODES)
    assert bundles == [{"CPU": 4, "GPU": 4}, {"CPU": 2, "GPU": 2}]
    named = [(f"10.0.0.{number}", node) for number, node in enumerate(NODES, 1)]
    check_fit(bundles, asked, named)
    larger = request(nodes=2, devices=4, devices_of_nodes=(4, 3))
    with pytest.raises(AccelBenchError, match="2 nodes, 1 with CPU 4, GPU 4, then 1 with CPU 3"):
        check_fit(bundles_of(larger, NODES), larger, named)


@pytest.mark.parametrize(
    ("memory", "groups", "fit"),
    [
        ((8, 2), 1, True),
        ((2, 8), 1, True),
        ((8, 8), 1, False),
        ((9, 2), 1, False),
        ((2, 2), 2, True),
        ((8, 2), 2, False),
        ((2, 4), 2, False),
    ],
)
def test_nodes_of_different_memory_are_counted(
    memory: tuple[int, int], groups: int, fit: bool
) -> None:
    sizes = [8, 3, 2, 2]
    nodes = [(f"n{gib}", {"CPU": 4.0, "memory": gib * 2.0**30}) for gib in sizes]
    asked = request(device="cpu", nodes=2, memory_gib=memory, ports=(1,) * groups)
    bundles = bundles_of(asked, [has for _, has in nodes])
    if fit:
        check_fit(bundles, asked, nodes)
        return
    with pytest.raises(AccelBenchError, match=r"no room .*resources.first_node_host_memory_gib"):
        check_fit(bundles, asked, nodes)


def test_a_refusal_states_the_memory_of_both_kinds_of_nodes() -> None:
    asked = request(device="cpu", nodes=2, memory_gib=(9, 2))
    nodes = [("10.0.0.1", {"CPU": 4.0, "memory": 8 * 2.0**30})] * 2
    said = (
        r"2 nodes, 1 with CPU 4, memory 9 GiB, then 1 with CPU 4, memory 2 GiB, are asked "
        r"for.*\(10.0.0.1: CPU 4, memory 8 GiB; .*`ray start --memory`"
    )
    with pytest.raises(AccelBenchError, match=said):
        check_fit(bundles_of(asked, [has for _, has in nodes]), asked, nodes)


class Actor:
    """A stand-in that accepts any call, and records its arguments."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        return self

    def remote(self, *arguments: Any) -> object:
        self.calls.append(arguments)
        return object()


def test_actors_get_no_address_of_results(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    variables = {"RESULTS": "postgresql://me:password@db/runs", "CACHE": "/c", "SECRET": "s"}
    for name, value in variables.items():
        monkeypatch.setenv(f"ACCEL_BENCH_{name}", value)
    calls: list[Any] = []
    hosts = Hosts(request(), None, [{}])
    monkeypatch.setattr(hosts, "_new_actor", lambda group, node: Actor(calls))
    hosts._start(0, 0)
    passed = calls[-1][-1]
    assert passed["ACCEL_BENCH_CACHE"] == "/c"
    assert {name for name in passed if name.startswith("ACCEL_BENCH_")} <= set(PASSED)


def test_a_group_waits_for_lost_actors_again_once_all_were_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents = RayAgents(b"secret", 20.0, None)
    awaited: list[float] = []

    def replace_lost(seconds: float) -> None:
        awaited.append(seconds)
        if len(awaited) in (1, 4):
            raise ConnectionError

    monkeypatch.setattr(agents, "replace_lost", replace_lost)
    assert [agents.is_ready() for _ in range(3)] == [False, True, True]
    assert awaited == [20.0, 0.0, 20.0]
    agents.interrupt()
    with pytest.raises(KeyboardInterrupt):
        agents.launch(None)  # type: ignore[arg-type]
    agents.close()


def test_a_dry_run_prints_what_would_be_started(tmp_path: Path) -> None:
    program = Launched(tmp_path, tmp_path)
    done = call("run", program.write(), *RAY, "--dry-run")
    assert done.code == 0, done.err
    assert "-m accel_bench_ray.driver" in done.err
    asked = json.loads(
        done.err[done.err.index('"{') + 1 : done.err.rindex('}"') + 1].replace("\\", "")
    )
    assert asked["nodes"] == 1
    assert asked["devices"] == 2
    assert asked["device"] == "cpu"


def test_what_ray_lacks_is_named(tmp_path: Path) -> None:
    program = Launched(tmp_path, tmp_path)
    client = call("run", program.write(), *RAY, "--set", "launcher.address=ray://head:10001")
    assert client.code == 2
    assert "'ray://head:10001' is that of a remote client" in client.err
    nothing = call("run", program.write(), *RAY, "--set", "launcher.address=127.0.0.1:1")
    assert nothing.code == 2
    assert "no Ray cluster can be used at '127.0.0.1:1'" in nothing.err
    assert "--set launcher.address=local" in nothing.err
    assert program.left_behind() == []


def test_the_machine_of_the_command_needs_no_devices(tmp_path: Path) -> None:
    name = Launched(tmp_path, tmp_path).write()
    resources = {"device": "cuda", "devices": "2", "host_memory_gib": "1000000"}
    settings = [
        word for key in resources for word in ("--set", f"resources.{key}={resources[key]}")
    ]
    done = call("run", name, *RAY, *settings, "--dry-run", "--format", "json")
    assert done.code == 0, done.err
    assert [row["reasons"] for row in json.loads(done.out)["experiments"]] == [[]]
    here = call("run", name, "-q", *settings, "--dry-run", "--format", "json")
    (row,) = json.loads(here.out)["experiments"]
    assert any("this machine" in reason for reason in row["reasons"])
