"""The sketch of an update against exact distances, and what it must not depend on."""

from __future__ import annotations

import math
from statistics import fmean
from types import SimpleNamespace

import pytest
import torch

from accel_bench.result import SKETCH_BUCKETS
from accel_bench.worker.verify.optimizer_steps import OptimizerStepCounter
from accel_bench.worker.verify.update import BLOCK_ROWS, ROW, UpdateSketch, sketch

SIZES = [1, SKETCH_BUCKETS, ROW - 1, ROW, ROW + 1, ROW * BLOCK_ROWS + 5]


def make_run(model, rank=0):
    return SimpleNamespace(unwrapped_model=model, rank=rank)


def norm(values):
    return float(torch.as_tensor(values, dtype=torch.float64).norm())


@pytest.mark.parametrize("size", SIZES)
def test_a_sketch_is_linear_and_loses_no_element(size):
    torch.manual_seed(size)
    one, other = torch.randn(size, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
    together = sketch("w", one) - sketch("w", other)
    torch.testing.assert_close(sketch("w", one - other), together, atol=1e-8, rtol=1e-8)
    last = torch.zeros(size, dtype=torch.float64)
    last[-1] = 3.0
    assert norm(sketch("w", last)) == pytest.approx(3.0)


def test_the_mean_over_names_of_the_squared_norm_is_that_of_the_tensor():
    torch.manual_seed(0)
    tensor = torch.randn(64, 96)
    exact = float(tensor.double().norm()) ** 2
    estimates = [norm(sketch(f"layer.{n}", tensor)) ** 2 / exact for n in range(200)]
    # One estimate has a standard error of the square root of 2 / 31.
    assert fmean(estimates) == pytest.approx(1.0, abs=4 * math.sqrt(2 / SKETCH_BUCKETS / 200))


def test_a_matrix_of_one_column_that_changed_is_estimated_as_well_as_any():
    change = torch.zeros(512, 256)
    change[:, 7] = torch.randn(512, generator=torch.Generator().manual_seed(1))
    exact = float(change.double().norm()) ** 2
    estimates = [norm(sketch(f"layer.{n}", change)) ** 2 / exact for n in range(100)]
    assert fmean(estimates) == pytest.approx(1.0, abs=4 * math.sqrt(2 / SKETCH_BUCKETS / 100))
    assert 0.4 < min(estimates) < max(estimates) < 2.5


def test_it_depends_on_neither_layout_nor_dtype_nor_the_global_random_state():
    weights = torch.randn(40, 60, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = sketch("w", weights.double())
    torch.manual_seed(7)
    before = torch.get_rng_state()
    torch.testing.assert_close(sketch("w", weights), expected)
    torch.testing.assert_close(sketch("w", weights.t().contiguous().t()), expected)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_did_not_move_has_a_sketch_of_zeros():
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    update = UpdateSketch(make_run(model))
    with torch.no_grad():
        model[0].weight += 1e-3
    found = update.finish(steps=3)
    moved = {name for name, change in found.tensors.items() if any(change.sketch)}
    assert (found.steps, found.trained_tensors, moved) == (3, 4, {"0.weight"})
    assert found.trained_elements == 2 * (100 * 100 + 100)


def test_a_tensor_that_is_frozen_later_stays_and_one_that_is_gone_or_infinite_does_not():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4, bias=False))
    update = UpdateSketch(make_run(model))
    model[0].bias.requires_grad_(False)
    with torch.no_grad():
        model[0].weight.fill_(math.inf)
    model[1] = torch.nn.Identity()
    found = update.finish(steps=1)
    assert list(found.tensors) == ["0.bias"]
    assert all(map(math.isfinite, found.weights))


def test_tensors_whose_elements_cannot_be_read_are_left_out():
    layers = [torch.nn.Linear(4, 4, device="meta"), torch.nn.LazyLinear(4), torch.nn.Linear(4, 4)]
    model = torch.nn.Sequential(*layers)
    model.sparse = torch.nn.Parameter(torch.eye(4).to_sparse())
    assert list(UpdateSketch(make_run(model)).finish(1).tensors) == ["2.weight", "2.bias"]
    OptimizerStepCounter(model.parameters()).see_step()


def test_wrappers_do_not_change_the_names():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4))
    inner = SimpleNamespace(
        named_parameters=lambda: (
            (name.replace("0.", "0._orig_mod._checkpoint_wrapped_module."), parameter)
            for name, parameter in model.named_parameters()
        )
    )
    assert list(UpdateSketch(make_run(inner)).finish(1).tensors) == ["0.weight", "0.bias"]


def test_other_ranks_keep_what_compares_replicas_alone():
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 8)
    first, second = (UpdateSketch(make_run(model, rank)).finish(1) for rank in (0, 1))
    assert second.tensors == {}
    assert first.weights == second.weights == second.weights_before
    with torch.no_grad():
        model.weight[0, 0] += 1e-3
    assert UpdateSketch(make_run(model, 1)).finish(1).weights != first.weights


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_distance_of_two_trainings_is_the_exact_one(decay):
    """Train twice from one start, with and without `decay`, and compare with all weights."""

    def train(weight_decay):
        torch.manual_seed(4)
        layers = [torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)]
        model = torch.nn.Sequential(*layers, torch.nn.LayerNorm(64))
        start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().double()
        update = UpdateSketch(make_run(model))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=weight_decay)
        for step in range(10):
            data = torch.randn(16, 64, generator=torch.Generator().manual_seed(step))
            (model(data) - data.roll(1, 1)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        end = torch.nn.utils.parameters_to_vector(model.parameters()).detach().double()
        return update.finish(10), end - start

    (one, exact_one), (two, exact_two) = train(0.0), train(5 * decay)
    sketched = {
        name: (torch.tensor(one.tensors[name].sketch), torch.tensor(two.tensors[name].sketch))
        for name in one.tensors
    }
    apart = math.hypot(*(norm(b - a) for a, b in sketched.values()))
    size = math.hypot(*(norm(a) for a, _ in sketched.values()))
    exact = float((exact_two - exact_one).norm() / exact_one.norm())
    assert apart / size == pytest.approx(exact, rel=0.25)
    assert (apart == 0) == (decay == 0)
