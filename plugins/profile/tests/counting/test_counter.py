"""Bytes moved by single operations, and operations that synchronize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from accel_bench_profile.counting.counter import OperationCounter
from accel_bench_profile.counting.sites import Sites
from accel_bench_profile.figures.kernel_kinds import SHARED, kind_of
from accel_bench_profile.ledger.schema import Figure, LedgerEntry, Phase

FLOATS = 1024
SIZE = 4 * FLOATS


def counted(work: Callable[[], Any], phase: Phase = "forward") -> tuple[LedgerEntry, ...]:
    """Return the counts of a function in a phase of a step."""
    counter = OperationCounter(Sites(None), (), ())
    counter.sites.phase = phase
    counter.start(host_calls=True)
    try:
        work()
    finally:
        counter.stop()
    return counter.entries()


def total(figure: Figure, work: Callable[[], Any], phase: Phase = "forward") -> int:
    return sum(one.figures.get(figure, 0) for one in counted(work, phase))


def zeros(number: int = FLOATS) -> torch.Tensor:
    return torch.zeros(number)


def test_the_bytes_that_are_moved_do_not_depend_on_the_spelling() -> None:
    x, y, result, table = zeros(), zeros(), zeros(), torch.zeros(FLOATS, 4)
    ids = torch.tensor([3])
    spellings: dict[str, tuple[Callable[[], Any], int]] = {
        "add": (lambda: x + y, 3 * SIZE),
        "add_": (lambda: x.add_(y), 3 * SIZE),
        "out": (lambda: torch.add(x, y, out=result), 3 * SIZE),
        "foreach": (lambda: torch._foreach_add_([x], [y]), 3 * SIZE),
        "fill_": (lambda: x.fill_(1.0), SIZE),
        "zero_": (x.zero_, SIZE),
        "full_like": (lambda: torch.full_like(x, 1.0), SIZE),
        "new_zeros": (lambda: x.new_zeros(FLOATS), SIZE),
        "copy_": (lambda: x.copy_(y), 2 * SIZE),
        "clone": (x.clone, 2 * SIZE),
        "embedding": (lambda: torch.embedding(table, ids), 8 + 2 * 16),
        "gathered": (lambda: table[ids], 8 + 2 * 16),
    }
    moved = {name: total("moved_bytes", work) for name, (work, _) in spellings.items()}
    assert moved == {name: size for name, (_, size) in spellings.items()}


def test_of_a_target_only_the_elements_that_are_written_count() -> None:
    """A table of 4,096 floats, of which two rows of four or three single elements are written."""
    table, rows, ones = torch.zeros(FLOATS, 4), torch.tensor([3, 5]), torch.ones(2, 4)
    row, flat, single = 16, zeros(), torch.tensor([1, 2, 3])
    mask, at, few = torch.arange(FLOATS) < 2, torch.tensor([[0, 1]]), torch.ones(3)
    columns, put = torch.tensor([0, 2]), torch.ops.aten.index_put_
    much = torch.ones(FLOATS)  # of which an index of three places takes three
    placed: dict[str, tuple[Callable[[], Any], int]] = {
        "index_put_": (lambda: table.index_put_([rows], ones), 2 * row + 2 * 8 + 2 * row),
        "a number": (lambda: table.index_put_([rows], few[0]), 2 * row + 2 * 8 + 4),
        "a mask": (lambda: table.index_put_([mask], ones), 2 * row + FLOATS + 2 * row),
        "a column": (lambda: put(table, [None, columns], ones[0, :2]), 2 * SIZE + 24),
        "two indices": (lambda: table.index_put_([single, at.mT], few[0]), 6 * 4 + 5 * 8 + 4),
        "setitem": (lambda: table.__setitem__(rows, ones), 2 * row + 2 * 8 + 2 * row),
        "index_copy_": (lambda: table.index_copy_(0, rows, ones), 2 * row + 2 * 8 + 2 * row),
        "index_fill_": (lambda: table.index_fill_(0, rows, 1.0), 2 * row + 2 * 8),
        "scatter_": (lambda: flat.scatter_(0, single, much), 12 + 24 + 12),
        "put_": (lambda: flat.put_(single, few), 12 + 24 + 12),
    }
    added: dict[str, tuple[Callable[[], Any], int]] = {
        "accumulate": (lambda: table.index_put_([rows], ones, True), 4 * row + 2 * 8 + 2 * row),
        "index_add_": (lambda: table.index_add_(0, rows, ones), 4 * row + 2 * 8 + 2 * row),
        "scatter_add_": (lambda: flat.scatter_add_(0, single, few), 24 + 24 + 12),
        "scatter_reduce_": (lambda: flat.scatter_reduce_(0, single, few, "amax"), 24 + 24 + 12),
        "reduced": (lambda: flat.scatter_(0, single, 1.0, reduce="add"), 24 + 24),
    }
    spellings = placed | added
    moved = {name: total("moved_bytes", work) for name, (work, _) in spellings.items()}
    assert moved == {name: size for name, (_, size) in spellings.items()}


def test_an_optimizer_in_one_kernel_reads_gradients_and_writes_what_it_keeps() -> None:
    weight = torch.nn.Parameter(zeros())
    weight.grad = zeros()
    optimizer = torch.optim.AdamW([weight], fused=True)
    optimizer.step()
    steps = [one for one in counted(optimizer.step) if one.operation == "aten._fused_adamw_"]
    (figures,) = [one.figures for one in steps]
    assert figures["moved_bytes"] == 7 * SIZE + 4  # the number of steps is read too


@pytest.mark.parametrize("operation", [torch.index_put, torch.ops.aten._unsafe_index_put])
def test_a_mask_as_an_index_is_a_synchronization_and_filling_by_it_is_none(operation: Any) -> None:
    x, chosen = zeros(), torch.arange(FLOATS) < 2
    values = torch.ones(2)
    assert total("synchronizations", lambda: operation(x, [chosen], values)) == 1
    assert total("synchronizations", lambda: operation(x, [torch.arange(2)], values)) == 0
    assert total("synchronizations", lambda: x.index_put_([chosen], torch.tensor(1.0))) == 0
    assert total("synchronizations", lambda: x.index_put_([chosen], values)) == 1


def test_an_assertion_on_the_device_is_no_synchronization() -> None:
    holds = torch.ones(())
    (entry,) = counted(lambda: torch._assert_async(holds))
    assert (entry.kind, entry.figures) == ("other", {"operations": 1})


def test_repeats_are_read_unless_the_size_of_the_output_is_given() -> None:
    x, repeats = zeros(2), torch.tensor([1, 2])
    assert total("synchronizations", lambda: x.repeat_interleave(repeats)) == 1
    known = total("synchronizations", lambda: x.repeat_interleave(repeats, output_size=3))
    assert known == 0


def test_a_tensor_that_is_sent_to_the_host_by_any_call_is_a_synchronization() -> None:
    x = zeros()
    for work in (x.cpu, lambda: x.to("cpu"), lambda: x.to(device="cpu")):
        assert total("synchronizations", work) == 1
    assert total("synchronizations", lambda: x.to(x.device)) == 0
    assert total("synchronizations", lambda: x.to(torch.float64)) == 0


def test_reading_a_batch_in_its_data_phase_is_no_synchronization() -> None:
    labels = torch.arange(4)

    def read() -> None:
        labels.tolist()
        labels.max().item()
        labels[labels > 1]

    assert total("synchronizations", read, "data") == 0
    assert total("synchronizations", read, "forward") == 3


def test_profiles_and_ledgers_name_the_same_kinds() -> None:
    x = torch.rand(2, 4)
    weight = torch.nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)

    def work() -> None:
        torch.softmax(x, -1)
        torch.nn.functional.cross_entropy(x, torch.tensor([0, 1]))
        torch.nn.functional.layer_norm(x, (4,))
        torch.nn.functional.scaled_dot_product_attention(x[None], x[None], x[None])
        torch.optim.SGD([weight], fused=True).step()

    entries = counted(work)
    shared = {one.operation: one.kind for one in entries if one.kind in SHARED}
    profiled = {one.operation: kind_of(one.operation.replace(".", "::")) for one in entries}
    assert shared == {name: kind for name, kind in profiled.items() if kind in SHARED}
    assert {*shared.values()} == {*SHARED}
