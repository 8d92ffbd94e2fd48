"""Contents of a round, and work outside its clock."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accel_bench_op import ComputeType
from accel_bench_op.cell_impl import peak_memory_bytes
from accel_bench_op.compute import TimedCall
from accel_bench_op.fixture import _pedantic, clock_for
from accel_bench_op.roofline_impl import roofline_figures
from accel_bench_op.settings import prepare_device, read_arguments, reads_flush, torch_name
from gpu_factory import Stream

from accel_bench import DeviceType
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine import devices
from accel_bench.machine.devices import device_type


class Clocked:
    """A clock that counts its readings, and calls between them."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def read(self) -> float:
        self.calls.append("clock")
        return float(len(self.calls))


class Fixture:
    """The used part of pytest-benchmark's fixture, with the order of calls."""

    enabled = True
    _max_time = 0.0
    _min_rounds = 3

    def __init__(self, clock: Clocked) -> None:
        self._timer = clock.read
        self.rounds = self.iterations = 0

    def pedantic(self, run: Any, setup: Any = None, rounds: int = 1, iterations: int = 1) -> None:
        self.rounds, self.iterations = rounds, iterations
        for _ in range(rounds):
            if setup:
                setup()
            self._timer()
            run()
            self._timer()


def test_a_backward_round_holds_the_backward_pass_alone() -> None:
    clock = Clocked()
    weight = torch.ones(3, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        # One round before has left no gradient, when the graph is built.
        assert weight.grad is None
        clock.calls.append("forward")
        return x * weight

    weight.register_post_accumulate_grad_hook(lambda _: clock.calls.append("backward"))
    call = TimedCall(ComputeType.TRAINING_BACKWARD, fn, ((torch.ones(3),), {}), lambda out: out)
    fixture = Fixture(clock)
    _pedantic(fixture, call, "cpu", False)
    assert clock.calls == ["forward", "clock", "backward", "clock"] * (3 + fixture.rounds)
    assert fixture.iterations == 1


@pytest.mark.parametrize("compute_type", [ComputeType.INFERENCE, ComputeType.TRAINING_FORWARD])
def test_a_forward_round_is_one_call(compute_type: ComputeType) -> None:
    clock = Clocked()
    weight = torch.ones(3, requires_grad=True)
    kept = []

    def fn(x: torch.Tensor) -> torch.Tensor:
        clock.calls.append("forward")
        kept.append((x * weight).requires_grad)
        return x

    call = TimedCall(compute_type, fn, ((torch.ones(3),), {}), lambda out: out)
    _pedantic(Fixture(clock), call, "cpu", False)
    assert clock.calls == ["clock", "forward", "clock"] * 6
    assert set(kept) == {compute_type is ComputeType.TRAINING_FORWARD}


def test_the_peak_of_memory_is_what_a_call_holds_at_once() -> None:
    inputs = torch.ones(1000, 1000)

    def call() -> torch.Tensor:
        first = inputs + 1
        second = first + 1
        del first
        return second + 1

    # Beside two results of 4 MB, a sum makes a tensor of the number that it adds.
    assert peak_memory_bytes(call, "cpu") == pytest.approx(8_000_000, abs=100)
    assert peak_memory_bytes(call, "meta") is None


def test_the_share_of_the_roofline_is_that_of_the_longer_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from accel_bench_op import roofline_impl as roofline

    monkeypatch.setattr(roofline, "matmul_peak", lambda device, dtype: 1e12)
    monkeypatch.setattr(roofline, "copy_peak", lambda device: 1e9)
    found = roofline_figures(2.0, 10**12, 10**8, "cpu", "float32")
    assert found["roofline_share"] == 0.5
    assert (found["flops_per_second"], found["bytes_per_second"]) == (0.5e12, 0.5e8)
    assert roofline_figures(2.0, 10**12, 10**9, "cpu", "float32")["roofline_share"] == 0.5
    assert roofline_figures(4.0, None, 2 * 10**9, "cpu", "float32")["roofline_share"] == 0.5
    assert roofline_figures(2.0, None, None, "cpu", "float32") == {}


def test_the_environment_sets_device_dtype_and_the_flush() -> None:
    given = {"DEVICE": "cpu", "DTYPE": "bfloat16", "FLUSH_CACHE": "1"}
    variables = {f"ACCEL_BENCH_MICRO_{name}": value for name, value in given.items()}
    assert read_arguments(variables) == {"device": "cpu", "dtype": torch.bfloat16}
    assert reads_flush(variables) and not reads_flush({})


def test_a_setting_that_means_nothing_is_an_error() -> None:
    with pytest.raises(PluginError, match="ACCEL_BENCH_MICRO_FLUSH_CACHE is 'yes'; write 1, or 0"):
        reads_flush({"ACCEL_BENCH_MICRO_FLUSH_CACHE": "yes"})


class Acme(DeviceType):
    """A device whose events are a second apart, and whose allocator keeps a peak."""

    torch_type, label = "acme", "Acme"

    def __init__(self, events: bool = True) -> None:
        self.asked: list[str] = []
        self.events, self.stream = events, Stream()

    def use(self, index: int) -> None:
        """Record the device."""
        self.asked.append(f"use {index}")

    def synchronize(self) -> None:
        """Record the call, and wait for the stream."""
        self.asked.append("wait")
        self.stream.synchronize()

    def make_event(self) -> Any:
        """Return an event a second after the previous one, if the device has events."""
        return self.stream.make_event() if self.events else None

    def memory(self) -> dict[str, int]:
        """Return the held bytes, and a reset peak."""
        self.asked.append("memory")
        return {"device_allocated_bytes": 100, "device_peak_allocated_bytes": 350}

    def reset_peak_memory(self) -> None:
        """Record the call."""
        self.asked.append("reset")


def test_a_device_is_timed_by_its_events_or_by_a_clock_that_waits_for_it() -> None:
    assert clock_for(device_type("cpu"))[0] == "wall"
    acme = Acme()
    name, read = clock_for(acme)
    first, second = read(), read()
    assert (name, second - first, acme.asked) == ("acme events", 1.0, ["wait"])
    without = Acme(events=False)
    name, read = clock_for(without)
    assert (name, isinstance(read(), float), without.asked) == ("acme wall", True, ["wait"])


def test_a_round_on_a_device_is_marked_on_the_device_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acme = Acme()
    known = {"acme": acme, "cpu": device_type("cpu")}
    monkeypatch.setattr(devices, "device_types", lambda: known)
    fixture = Fixture(Clocked())
    call = TimedCall(ComputeType.INFERENCE, lambda x: x, ((torch.ones(3),), {}), lambda out: out)
    _pedantic(fixture, call, "acme:2", False)
    assert acme.asked[0] == "use 2"
    assert fixture.iterations > 1  # as many as fill a millisecond
    acme.asked.clear()
    assert peak_memory_bytes(lambda: acme.asked.append("call"), "acme") == 250
    assert acme.asked == ["wait", "reset", "memory", "call", "wait", "memory"]
    acme.asked.clear()
    _pedantic(fixture, call, "acme", False)
    assert "use 0" not in acme.asked  # without a number it is the current one


def test_the_device_that_is_prepared_last_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    acme = Acme()
    monkeypatch.setattr(devices, "device_types", lambda: {"acme": acme})
    for name in ("acme:1", "acme:0", "acme:1"):
        prepare_device(name)
    assert acme.asked == ["use 1", "use 0", "use 1"]


def test_a_device_is_named_as_in_a_scenario_and_called_as_torch_calls_it() -> None:
    assert [*map(torch_name, ("rocm:1", "cpu", "meta"))] == ["cuda:1", "cpu", "meta"]
    assert prepare_device("cpu") == "cpu"
    with pytest.raises(ScenarioError, match="no device type is called 'cudaa'; did you mean 'cuda"):
        read_arguments({"ACCEL_BENCH_MICRO_DEVICE": "cudaa"})
    with pytest.raises(ScenarioError, match=r"'rocm': the installed torch .* not built for ROCm"):
        read_arguments({"ACCEL_BENCH_MICRO_DEVICE": "rocm:1"})
