"""`accel-bench catalog prices` lists prices and imports a catalog into the user's table."""

from __future__ import annotations

import json
import os
from datetime import date, datetime, timezone
from pathlib import Path

import pytest
import yaml
from accel_bench_advise.prices import PRICES
from cli.program import Done, call
from imported_modules import imported

HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region"
)
ROWS = (
    "p4d.24xlarge,A100,8.0,96.0,1152.0,\"{'Gpus': []}\",21.5,9.8,us-east-1",
    "p4d.24xlarge,A100,8.0,96.0,1152.0,,29.1,,eu-west-1",
    "m5.large,,,2.0,8.0,,0.096,0.03,us-east-1",
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the user's table, which does not exist yet."""
    monkeypatch.delenv("ACCEL_BENCH_PRICES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "accel-bench" / "prices.yaml"


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    """A catalog in SkyPilot's form, a file of March 2026."""
    path = tmp_path / "aws" / "vms.csv"
    path.parent.mkdir()
    path.write_text("\n".join((HEADER, *ROWS)) + "\n")
    changed = datetime(2026, 3, 4, 12, tzinfo=timezone.utc).timestamp()
    os.utime(path, (changed, changed))
    return path


def import_(*arguments: str | Path) -> Done:
    """Call `catalog prices import`."""
    return call("catalog", "prices", "import", *map(str, arguments))


def listed() -> dict[tuple[str, str], dict[str, object]]:
    """Rows of `catalog prices` by instance and region."""
    done = call("catalog", "prices", "list", "--format", "json")
    assert done.code == 0, done.err
    return {(row["instance"], row["region"]): row for row in json.loads(done.out)}


@pytest.mark.usefixtures("own")
def test_the_list_names_date_source_and_staleness_of_every_price() -> None:
    rows = listed()
    p4d = rows["p4d.24xlarge", "us-east-1"]
    assert (p4d["devices"], p4d["table"]) == (8, "shipped")
    for row in rows.values():
        assert row["source"]
        age = (date.today() - date.fromisoformat(str(row["date"]))).days
        assert row["stale"] is (age > 90)
    printed = call("catalog", "prices", "list").out
    assert any("  21.96 " in line and "p4d.24xlarge" in line for line in printed.splitlines())


def test_an_imported_row_has_source_date_and_region_and_wins(own: Path, catalog: Path) -> None:
    done = import_(catalog)
    assert (done.code, done.err) == (0, "")
    assert "2 prices of aws, dated 2026-03-04" in done.out
    assert "1 with no accelerator" in done.out
    rows = listed()
    assert rows["p4d.24xlarge", "us-east-1"] == {
        "provider": "aws",
        "instance": "p4d.24xlarge",
        "region": "us-east-1",
        "device": "A100",
        "devices": 8,
        "usd_per_hour": 21.5,
        "spot_usd_per_hour": 9.8,
        "date": "2026-03-04",
        "stale": True,
        "table": "own",
        "source": "imported from vms.csv",
    }
    assert rows["p4d.24xlarge", "eu-west-1"]["usd_per_hour"] == 29.1
    assert rows["p5.48xlarge", "us-east-1"]["table"] == "shipped"
    assert len(yaml.safe_load(own.read_text())["prices"]) == 2


@pytest.mark.usefixtures("own")
def test_the_options_say_what_the_file_does_not(catalog: Path) -> None:
    arguments = ("--provider", "mine", "--date", "2026-01-02", "--source", "a contract")
    assert import_(catalog, *arguments, "--region", "eu-west-1").code == 0
    mine = [row for row in listed().values() if row["table"] == "own"]
    assert [(row["provider"], row["date"], row["source"]) for row in mine] == [
        ("mine", "2026-01-02", "a contract")
    ]


def test_a_second_import_keeps_other_rows_the_comment_and_the_version_before(
    own: Path, catalog: Path
) -> None:
    own.parent.mkdir(parents=True)
    first = (
        "# Ask me before you change this.\nprices:\n  - {provider: lab, instance: ours, region: '',"
        " device: a10, devices: 2,\n     usd_per_hour: 0.5, source: me, date: 2026-05-01}\n"
    )
    own.write_text(first)
    assert import_(catalog, "--instance", "p4d.24xlarge").code == 0
    assert listed()["ours", ""]["usd_per_hour"] == 0.5
    assert own.read_text().startswith("# Ask me before you change this.\nprices:\n")
    assert own.with_name("prices.yaml.bak").read_text() == first
    assert sorted(p.name for p in own.parent.iterdir()) == ["prices.yaml", "prices.yaml.bak"]


def test_a_link_to_a_table_stays_a_link(own: Path, catalog: Path, tmp_path: Path) -> None:
    real = tmp_path / "dotfiles.yaml"
    real.write_text("prices: []\n")
    own.parent.mkdir(parents=True)
    own.symlink_to(real)
    assert import_(catalog).code == 0
    assert own.is_symlink()
    assert "p4d.24xlarge" in real.read_text()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("p5.48xlarge,H100,8.0,1,1,,free,,us-east-1", "vms.csv:5: Price is 'free'"),
        ("p5.48xlarge,H100,8.0", "vms.csv:5: 3 cells"),
    ],
)
def test_a_bad_catalog_is_refused_and_the_table_left_as_it_is(
    row: str, words: str, own: Path, catalog: Path
) -> None:
    assert import_(catalog).code == 0
    before = own.read_bytes()
    with catalog.open("a") as file:
        file.write(row + "\n")
    done = import_(catalog)
    assert done.code == 2
    assert words in done.err
    assert own.read_bytes() == before
    assert [p.name for p in own.parent.iterdir()] == ["prices.yaml"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--date", "yesterday"), "YYYY-MM-DD"),
        (("--date", "2999-01-01"), "in the future"),
        (("--region", "mars"), "no price"),
    ],
)
def test_what_cannot_be_imported_leaves_no_table(
    arguments: tuple[str, ...], words: str, own: Path, catalog: Path
) -> None:
    done = import_(catalog, *arguments)
    assert done.code == 2
    assert words in done.err
    assert not own.exists()


def test_a_file_that_is_not_there_is_named(own: Path, tmp_path: Path) -> None:
    done = import_(tmp_path / "nothing.csv")
    assert done.code == 2
    assert "nothing.csv' cannot be read" in done.err
    assert not own.exists()


def test_a_broken_table_of_one_s_own_is_not_overwritten(own: Path, catalog: Path) -> None:
    own.parent.mkdir(parents=True)
    own.write_text("prices:\n  - {instance: p4d.24xlarge}\n")
    done = import_(catalog)
    assert done.code == 2
    assert f"{own}:2:" in done.err
    assert own.read_text() == "prices:\n  - {instance: p4d.24xlarge}\n"


def test_a_file_where_the_folder_should_be_is_an_error(own: Path, catalog: Path) -> None:
    own.parent.parent.write_text("in the way")
    done = import_(catalog)
    assert done.code == 2
    assert str(own.parent) in done.err


def test_importing_the_command_imports_neither_pydantic_nor_rich_tables() -> None:
    program = "import accel_bench_advise.prices"
    assert not imported(program, {"pydantic", "torch", "rich.table", "yaml"})


def test_a_wide_table_has_all_columns_and_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    narrow, wide = (
        call("catalog", "prices", "list").out,
        call("catalog", "prices", "list", "--wide").out,
    )
    assert "\nleft out for want of room: region, spot,\ndate, stale, table, source;" in narrow
    assert "left out" not in wide
    assert {column.header for column in PRICES} <= set(wide.partition("──")[0].split())
    monkeypatch.delenv("COLUMNS")
    assert call("catalog", "prices", "list").out == wide
