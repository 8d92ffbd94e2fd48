"""Which of several processes this is: by the variables of each launcher, without contradictions."""

from __future__ import annotations

import pytest

from accel_bench.errors import ScenarioError
from accel_bench.machine.placement import Placement, read_placement

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_without_a_launcher_there_is_no_placement() -> None:
    assert read_placement({}) is None
    assert read_placement({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None  # a batch script
    assert read_placement({"WORLD_SIZE": "1"}) is None


def test_torchrun_says_all() -> None:
    found = read_placement(TORCHRUN)
    assert found == Placement("torchrun", 3, 4, 1, 2, 1, 2, False, "10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("variables", "launcher", "rank", "local_rank"),
    [
        (
            {
                "OMPI_COMM_WORLD_RANK": "1",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
            },
            "Open MPI",
            1,
            1,
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, "MPICH", 1, None),
        (
            {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"},
            "SLURM",
            1,
            0,
        ),
    ],
)
def test_mpi_and_slurm_are_read(
    variables: dict[str, str], launcher: str, rank: int, local_rank: int | None
) -> None:
    found = read_placement(variables)
    assert found is not None
    assert (found.launcher, found.rank, found.size) == (launcher, rank, 2)
    assert found.local_rank == local_rank


@pytest.mark.parametrize(
    ("variables", "address"),
    [
        (
            {
                "SKYPILOT_NODE_RANK": "1",
                "SKYPILOT_NUM_NODES": "2",
                "SKYPILOT_NUM_GPUS_PER_NODE": "8",
                "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
            },
            "10.0.0.1",
        ),
        (
            {
                "DSTACK_NODE_RANK": "1",
                "DSTACK_NODES_NUM": "2",
                "DSTACK_GPUS_PER_NODE": "8",
                "DSTACK_MASTER_NODE_IP": "10.0.0.1",
            },
            "10.0.0.1",
        ),
        (
            {
                "PET_NODE_RANK": "1",
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "8",
                "PET_MASTER_ADDR": "10.0.0.1",
            },
            "10.0.0.1",
        ),
    ],
)
def test_platforms_start_one_process_for_each_node(variables: dict[str, str], address: str) -> None:
    found = read_placement(variables)
    assert found is not None
    assert found.per_node
    assert (found.rank, found.nodes, found.local_size) == (1, 2, 8)
    assert found.address == address


def test_torchrun_that_slurm_or_a_platform_has_started_on_each_node_is_no_contradiction() -> None:
    by_slurm = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
    by_platform = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "2"}
    for outer in (by_slurm, by_platform):
        found = read_placement({**TORCHRUN, **outer})
        assert found is not None
        assert found.launcher == "torchrun"


@pytest.mark.parametrize(
    ("variables", "culprits"),
    [
        ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2", "RANK"]),
        ({"WORLD_SIZE": "2", "RANK": "2"}, ["RANK=2", "WORLD_SIZE=2"]),
        ({"WORLD_SIZE": "two", "RANK": "0"}, ["WORLD_SIZE=two"]),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, ["LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"]),
        (
            {**TORCHRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "3"},
            ["torchrun", "SLURM", "4 processes on 2 nodes", "the other 3"],
        ),
        (
            {**TORCHRUN, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"},
            ["torchrun", "Open MPI", "rank 3 by the one and 0 by the other"],
        ),
        (
            {**TORCHRUN, "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NUM_NODES": "3"},
            ["torchrun", "SkyPilot", "2 nodes", "the other 3"],
        ),
    ],
)
def test_contradictions_are_refused_with_the_culprit(
    variables: dict[str, str], culprits: list[str]
) -> None:
    with pytest.raises(ScenarioError) as refused:
        read_placement(variables)
    assert all(culprit in str(refused.value) for culprit in culprits), refused.value
    assert "unset" in str(refused.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("n[1-2,7]", "n1"), ("gpu[003,007]-ib", "gpu003-ib"), ("a1,b[2-3]", "a1"), ("n9", "n9")],
)
def test_rank_0_of_slurm_is_on_the_first_node_of_the_step(nodes: str, first: str) -> None:
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": nodes}
    for variables, address in ((step, first), ({**step, "MASTER_ADDR": "10.0.0.1"}, "10.0.0.1")):
        found = read_placement(variables)
        assert found is not None
        assert found.address == address
