"""What torch's DistributedDataParallel cannot do together is a reason, and no crash of torch's."""

from __future__ import annotations

from accel_bench_torch.ddp import DDP, DDPOptions

from accel_bench.testing import make_experiment, make_machine


def reasons(static_graph: bool, accumulation: int) -> list[str]:
    plugin = DDP(DDPOptions(static_graph=static_graph), "ddp")
    experiment = make_experiment({"train": {"gradient_accumulation": accumulation}})
    return list(plugin.check_scenario(experiment, make_machine()))


def test_a_static_graph_is_learned_in_a_pass_that_accumulation_leaves_out() -> None:
    (reason,) = reasons(static_graph=True, accumulation=2)
    assert "train.gradient_accumulation 2 exchanges nothing in that one" in reason
    assert reasons(static_graph=True, accumulation=1) == []
    assert reasons(static_graph=False, accumulation=2) == []
