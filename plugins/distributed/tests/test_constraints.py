"""Meshes that do not fit are refused before the start, with the number in the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_distributed import Mesh, MeshOptions
from accel_bench_report.scaling import ScalingOptions, scaling_request
from kit import this_machine
from pydantic import ValidationError

from accel_bench.documents.presets import preset_path
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import make_experiment, make_machine

EXPERTS = {"model": {"id": "mixtral-8x7b"}}


def reasons(options: dict[str, Any], devices: int | list[int] = 4, **work: Any) -> list[str]:
    """Return why a mesh does not fit so many devices, of one node or of each node."""
    key = "devices_by_node" if isinstance(devices, list) else "devices"
    scenario = {"resources": {key: devices}, **work}
    plugin = Mesh(MeshOptions(**options), "mesh")
    return list(plugin.check_scenario(make_experiment(scenario), make_machine()))


@pytest.mark.parametrize(
    "options, devices, work, reason",
    [
        ({"shard": 3}, 4, {}, "shard 3 = 3 devices, and resources.devices x resources.nodes is 4"),
        ({"replicate": 3}, 4, {}, "replicate 3 = 3 devices cannot be filled up to 4 devices"),
        ({"tensor": 4, "shard": 1}, 4, {}, "num_key_value_heads 2 cannot be divided by tensor 4"),
        ({"expert": "auto"}, 4, {}, "the model has no experts that expert could divide"),
        ({"expert": "auto"}, 1, {}, "the model has no experts that expert could divide"),
        ({"expert": "auto"}, 16, EXPERTS, "expert 16 is more than the model's 8 experts"),
        ({"expert": "auto"}, 3, EXPERTS, "8 experts cannot be divided by expert 3"),
        ({"tensor": "auto"}, 4, EXPERTS, "set expert: 4 beside it"),
        (
            {"tensor": "auto"},
            1,
            {"task": "masked-lm", "model": {"id": "bert-base-uncased"}},
            "transformers has no tensor-parallel plan for bert models; set tensor to 1",
        ),
        ({"context": 2}, 4, {}, "torch's context parallelism has kernels for CUDA alone"),
        (
            {"expert": 3, "dispatch": True},
            4,
            EXPERTS,
            "expert 3 = 3 devices, and resources.devices x resources.nodes is 4",
        ),
        ({"expert": "auto", "dispatch": True}, 3, EXPERTS, "8 experts cannot be divided by"),
        ({"expert": "auto", "dispatch": True}, 4, {}, "the model has no experts that expert"),
        (
            {"expert": "auto", "dispatch": True},
            4,
            {**EXPERTS, "train": {"precision": "bf16-master-weights"}},
            "makes no copies of experts that tokens are sent to",
        ),
        ({"cpu_offload": True}, 4, {}, "on a CPU the weights are on the host already"),
        (
            {"tensor": 2},
            4,
            {"optimizer": {"use": "adamw", "fused": True}},
            "take fused out of the optimizer",
        ),
        (
            {},
            1,
            {"model": {"dtype": "bfloat16"}, "train": {"precision": "bf16-master-weights"}},
            "set model.dtype: float32",
        ),
    ],
)
def test_what_does_not_fit_is_a_reason(
    options: dict[str, Any], devices: int, work: dict[str, Any], reason: str
) -> None:
    (found,) = reasons(options, devices, **work)
    assert reason in found


@pytest.mark.parametrize(
    "options, devices, data_parallel, fraction",
    [
        ({}, 4, 4, 1 / 4),
        ({"replicate": 2}, 4, 4, 1 / 2),
        ({"tensor": "auto"}, 2, 1, 1 / 2),
        ({"tensor": 1}, 2, 2, 1 / 2),
        ({"tensor": 2}, 4, 2, 1 / 4),
        ({"tensor": 2, "replicate": "auto"}, 4, 2, 1 / 2),
        ({}, 1, 1, 1),
    ],
)
def test_sizes_give_the_batches_and_the_memory_of_a_device(
    options: dict[str, Any], devices: int, data_parallel: int, fraction: float
) -> None:
    assert reasons(options, devices) == []
    scenario = make_experiment({"resources": {"devices": devices}}).scenario
    plugin = Mesh(MeshOptions(**options), "mesh")
    assert plugin.data_parallel(scenario) == data_parallel
    assert plugin.fraction_per_device(scenario) == fraction


@pytest.mark.parametrize(
    ("options", "nodes", "fits"),
    [
        ({}, [3, 1], True),
        ({"replicate": 3}, [4, 2], True),
        ({"replicate": 2}, [3, 1], False),
        ({"tensor": 2}, [4, 2], True),
        ({"tensor": 2}, [3, 1], False),
    ],
)
def test_groups_of_a_mesh_lie_within_a_node_where_nodes_differ(
    options: dict[str, Any], nodes: list[int], fits: bool
) -> None:
    found = reasons(options, nodes)
    assert found == [] if fits else "node 0 has 3 devices, and " in found[0]


@pytest.mark.parametrize(("dispatch", "data_parallel"), [(False, 1), (True, 4)])
@pytest.mark.parametrize("expert", ["auto", 4])
def test_devices_that_exchange_tokens_take_batches_of_their_own(
    expert: str | int, dispatch: bool, data_parallel: int
) -> None:
    options = {"expert": expert, "dispatch": dispatch}
    assert reasons(options, 4, **EXPERTS) == []
    scenario = make_experiment({"resources": {"devices": 4}, **EXPERTS}).scenario
    plugin = Mesh(MeshOptions(**options), "mesh")
    assert plugin.data_parallel(scenario) == data_parallel
    assert plugin.fraction_per_device(scenario) == 1 / 4
    strategy = "FSDPModule" if dispatch else "DTensor"
    assert plugin.expected_strategy(scenario) == strategy


def test_the_plan_knows_what_a_device_keeps_and_what_a_group_takes() -> None:
    draft = read_draft(preset_path("scenarios", "distributed-cpu"))
    plan = make_plan(draft, this_machine(), PlanRequest(oversubscribe=True))
    found = {planned.experiment.stack.name: planned for planned in plan.planned}
    needs = {name: planned.need.total_bytes for name, planned in found.items() if planned.need}
    assert needs["ddp"] == needs["baseline"] == 2 * needs["fsdp2"] == 2 * needs["tensor-parallel"]
    works = {name: planned.experiment.scenario for name, planned in found.items()}
    assert {name: work.train.micro_batch_size for name, work in works.items()} == {
        "baseline": 4,
        "ddp": 4,
        "fsdp2": 4,
        "tensor-parallel": 8,
    }
    assert {work.train.global_batch_size for work in works.values()} == {8}


def test_a_batch_of_one_fits_devices_that_compute_it_together(tmp_path: Path) -> None:
    """DDP refuses it, as does a mesh with a group for each device."""
    path = tmp_path / "one.yaml"
    path.write_text("""\
name: one
model: {id: tiny-llama-cpu}
resources: {device: cpu, devices: 2}
train:
  global_batch_size: 1
stacks: {baseline: [{use: mesh, tensor: auto}], fsdp2: [mesh], ddp: []}
""")

    def plan_of(only: str) -> Plan:
        request = PlanRequest(only=(only,), no_baseline=only != "baseline", oversubscribe=True)
        return make_plan(read_draft(path), this_machine(), request)

    (planned,) = plan_of("baseline").planned
    assert planned.skipped == ()
    work = planned.experiment.scenario
    assert (work.data_parallel, work.world_size) == (1, 2)
    assert (work.train.micro_batch_size, work.train.global_batch_size) == (1, 1)
    for stack in ("fsdp2", "ddp"):
        place = rf"one\.yaml:5:3: .*1 cannot be divided by 1 x 2 devices = 2 .*'{stack}'"
        with pytest.raises(ScenarioError, match=place):
            plan_of(stack)


def test_strong_scaling_divides_the_batch_by_groups_of_devices(tmp_path: Path) -> None:
    path = tmp_path / "strong.yaml"
    path.write_text("""\
name: strong
model: {id: tiny-llama-cpu}
resources: {device: cpu, devices: 2}
train: {global_batch_size: 2, gradient_accumulation: 2}
stacks: {baseline: [{use: mesh, tensor: auto}]}
""")
    options = ScalingOptions(scenario=str(path), devices="1,2", strong=True, oversubscribe=True)
    draft, machine = read_draft(path), this_machine()
    plan = make_plan(draft, machine, scaling_request(draft, machine, options))
    trains = [planned.experiment.scenario.train for planned in plan.planned]
    sizes = [(one.micro_batch_size, one.gradient_accumulation) for one in trains]
    assert sizes == [(1, 2), (1, 2)]
    assert {one.global_batch_size for one in trains} == {2}


def test_a_number_of_groups_that_the_mesh_does_not_make_is_refused() -> None:
    draft = read_draft(preset_path("scenarios", "distributed-cpu"))
    wrong = PlanRequest(overrides=(("resources.data_parallel", 2),), oversubscribe=True)
    with pytest.raises(ScenarioError, match=r"is 2, and mesh makes 1 of 2 devices; leave it out"):
        make_plan(draft, this_machine(), wrong)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"shard": "auto", "tensor": "auto"}, "only one size of the mesh can be auto"),
        ({"tensor": 2, "expert": 4}, "give both the same number, or one of them"),
        ({"shard": 0}, "sizes of the mesh are 1 or more, or auto"),
        ({"dispatch": True}, "set expert, and leave replicate, shard and tensor out"),
        ({"dispatch": True, "expert": 2, "shard": 2}, "leave replicate, shard and tensor out"),
        ({"dispatch": True, "expert": 2, "cpu_offload": True}, "leave cpu_offload out"),
    ],
)
def test_sizes_that_contradict_one_another_are_refused(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValidationError, match=problem):
        MeshOptions(**options)
