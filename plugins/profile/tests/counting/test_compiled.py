"""Graph breaks, recompilations and generated kernels of a compiled part are counted, with lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from accel_bench_profile.ledger.difference import LedgerDifference, difference

from accel_bench.modeling.compilation import reset_compiler

from . import planted
from .planted import compiled, ledger_of

pytestmark = pytest.mark.filterwarnings("default")  # the compiler reads gradients of no leaves


@pytest.fixture(autouse=True)
def uncompiled() -> Iterator[None]:
    """Reset the compiler before and after a test."""
    from torch._inductor import config

    torch._dynamo.reset()
    reset_compiler()
    with config.patch({"trace.provenance_tracking_level": 0, "aot_inductor.metadata": {}}):
        yield
    torch._dynamo.reset()
    reset_compiler()


def sums(found: LedgerDifference) -> dict[str, int]:
    return {one.figure: one.after - one.before for one in found.rose if not one.kind}


def test_a_graph_break_and_a_recompilation_are_named_with_their_lines(tmp_path: Path) -> None:
    before = ledger_of(tmp_path, prepare=compiled(None, "eager"))
    reset_compiler()
    found = difference(before, ledger_of(tmp_path, prepare=compiled(planted.breaking, "eager")))
    broken = next(one for one in found.places if "graph_breaks" in one.figures)
    assert broken.code.endswith("# PLANTED")
    assert broken.function == "breaking"
    again = next(one for one in found.places if "recompilations" in one.figures)
    assert again.function == "breaking"
    assert any("calls" in one for one in again.operations)
    assert {"graph_breaks", "recompilations"} <= sums(found).keys()


@pytest.mark.release
def test_a_lost_fusion_of_generated_kernels_is_named_with_its_line(tmp_path: Path) -> None:
    before = ledger_of(tmp_path, prepare=compiled(None, "inductor"))
    reset_compiler()
    lost = compiled(planted.unfused, "inductor")
    found = difference(before, ledger_of(tmp_path, prepare=lost))
    assert sums(found)["kernels"] >= 1
    assert any(one.code.endswith("# PLANTED") for one in found.places)
    kernels = [one for one in before.entries if one.kind == "compiled"]
    assert {one.site.module for one in kernels} == {"blocks.1.mlp"}
    assert {one.site.phase for one in kernels} == {"forward", "backward"}
    assert all(one.site.code for one in kernels)
