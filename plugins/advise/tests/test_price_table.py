"""Prices written to the user's own table are read back unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from accel_bench_advise.price_import import add_to_user_table, leading_comments, table_text
from accel_bench_advise.price_table import Price, user_prices

from accel_bench.errors import PriceError

from .price_fields import FIELDS


def price(**changes: Any) -> Price:
    """A row of a table."""
    return Price(**{**FIELDS, **changes})


def test_a_user_without_a_home_is_told_how_to_have_a_table(homeless: Path) -> None:
    with pytest.raises(PriceError, match="stands for no home folder here; let ACCEL_BENCH_PRICES"):
        add_to_user_table([price()])
    assert list(homeless.iterdir()) == []


def test_a_written_table_reads_back_the_same(tmp_path: Path) -> None:
    rows = [
        price(),
        price(instance='odd: "name" #1, {x}', region="", spot_usd_per_hour=1e-3),
        price(instance="Zürich\\1", source="- [a]", usd_per_hour=1e5),
    ]
    path = tmp_path / "table.yaml"
    path.write_text(table_text(rows, "# mine\n"), encoding="utf8")
    assert user_prices(path) == [rows[2], rows[1], rows[0]]


def test_a_table_does_not_grow_beyond_what_can_be_read() -> None:
    rows = [price(instance=f"i{number}", source="x" * 500) for number in range(4000)]
    with pytest.raises(PriceError, match="import fewer regions"):
        table_text(rows)


def test_the_rows_of_a_table_are_sorted_and_the_new_ones_win(tmp_path: Path) -> None:
    rows = [price(), price(instance="b"), price(usd_per_hour=1.0), price(instance="a")]
    path = tmp_path / "table.yaml"
    path.write_text(table_text(rows))
    found = user_prices(path)
    assert [one.instance for one in found] == ["a", "b", "p4d.24xlarge"]
    assert found[2].usd_per_hour == 1.0


def test_only_the_comment_at_the_head_of_a_table_is_its_head() -> None:
    assert leading_comments("# a\n\n# b\nprices:\n# c\n") == "# a\n\n# b\n"
    assert leading_comments("prices: []\n") == ""
