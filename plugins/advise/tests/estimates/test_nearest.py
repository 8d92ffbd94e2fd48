"""Search for the nearest change that fits: the printed change is the simulated one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.estimates.memory import GIBI, MemoryEstimator, NearestSearch
from accel_bench_advise.estimates.schema import Simulation, SimulationRequest
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.target import target_of

from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft

WORK = """\
name: large-weights
model:
  id: llama-2-7b
  dtype: bfloat16
  overrides:
    num_hidden_layers: 1
    hidden_size: 256
    intermediate_size: 512
    num_attention_heads: 4
    num_key_value_heads: 4
    vocab_size: 16384
data: {use: synthetic, sequence_length: 64}
optimizer: sgd
resources: {device: cpu}
train: {micro_batch_size: 4, gradient_checkpointing: true}
"""
MICRO, ACCUMULATION = "train.micro_batch_size", "train.gradient_accumulation"


class InProcess(Simulator):
    """A simulator in this process, which has torch."""

    def _ask(self, request: SimulationRequest) -> Simulation:
        from accel_bench_advise.simulation.__main__ import answer

        return answer(request.model_dump_json())


@pytest.fixture
def simulator() -> Iterator[Simulator]:
    with closing(InProcess()) as simulator:
        yield simulator


def test_a_smaller_batch_is_simulated_with_the_gradients_that_it_keeps(
    tmp_path: Path, simulator: Simulator
) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(WORK)

    def planned(changed: dict[str, Any]) -> Planned:
        request = PlanRequest(overrides=tuple(changed.items()), force=True)
        return make_plan(read_draft(path), read_machine(), request).planned[0]

    target = target_of(read_machine(), None)._replace(kind="cpu")

    def needed(micro: int, accumulation: int, memory: int | None = None) -> float:
        estimator = MemoryEstimator(simulator, target._replace(memory_bytes=memory))
        return estimator.need(planned({MICRO: micro, ACCUMULATION: accumulation}))

    kept, alone = needed(2, 2), needed(2, 1)
    assert kept > alone > GIBI // 2
    capacity = int((kept + alone) / 2)
    assert needed(1, 4) < capacity
    estimator = MemoryEstimator(simulator, target._replace(memory_bytes=capacity))
    found = NearestSearch(estimator, lambda _, changed: planned(changed)).nearest(planned({}))
    assert found is not None
    assert found.settings == {MICRO: 1, ACCUMULATION: 4}
    assert found.needed_bytes.high == pytest.approx(needed(1, 4), rel=1e-5)
    assert found.needed_bytes.high <= capacity


def test_where_weights_and_states_alone_exceed_the_device_no_smaller_batch_is_simulated(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large.yaml"
    path.write_text(WORK)
    base = {
        "model.dtype": "float32",
        "model.overrides.vocab_size": 2**18,
        "data.sequence_length": 16,
        MICRO: 2,
        "optimizer.use": "adamw",
        "train.gradient_checkpointing": False,
    }

    def planned(changed: dict[str, Any]) -> Planned:
        request = PlanRequest(overrides=tuple({**base, **changed}.items()), force=True)
        return make_plan(read_draft(path), read_machine(), request).planned[0]

    with closing(Counting()) as simulator:
        target = target_of(read_machine(), None)._replace(kind="cpu", memory_bytes=GIBI // 5)
        search = NearestSearch(MemoryEstimator(simulator, target), lambda _, one: planned(one))
        assert search.nearest(planned({})) is None
    # As it is, with checkpointing in bfloat16, and with an adapter beside that.
    assert simulator.asked == [("float32", False, 2), *[("bfloat16", True, 2)] * 2]


class Counting(InProcess):
    """A simulator that records its requests: dtype, checkpointing, micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool, int]] = []

    def _ask(self, request: SimulationRequest) -> Simulation:
        scenario = request.experiment.scenario
        train, shape = scenario.train, request.shape
        dtype = scenario.model.dtype
        self.asked.append((dtype, train.gradient_checkpointing, shape.micro_batch_size))
        return super()._ask(request)
