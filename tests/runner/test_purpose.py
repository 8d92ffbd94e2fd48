"""Purposes enter by one door: done in workers with what they build, named when they are broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.program import call, surroundings, write_nulls
from documented import install_page
from several_ranks.scenarios import write

from accel_bench import run_purpose
from accel_bench.errors import AccelBenchError, PluginError
from accel_bench.job import OWN_PURPOSES, PURPOSES
from accel_bench.plugins.doors import find_entries

STRANGER = """\
def ranks(rank):
    rank.build()
    return [rank.run.rank, rank.run.world_size, rank.ask("sample_lengths")]


def failing(rank):
    1 / 0


def unwritable(rank):
    return object()
"""

ENTRIES = {
    "absent": "no_such_module:function",
    "failing": "a_stranger:failing",
    "ranks": "a_stranger:ranks",
    "unwritable": "a_stranger:unwritable",
}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a distribution with purposes is installed, most of them broken."""
    site = tmp_path_factory.mktemp("site")
    info = site / "a_stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in ENTRIES.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{PURPOSES}]", *lines]))
    (site / "a_stranger.py").write_text(STRANGER)
    return site


def test_ours_enter_by_the_door() -> None:
    assert all(entry.is_ours for entry in find_entries(PURPOSES, "purpose").values())


def test_a_purpose_works_with_what_each_rank_has_built(stranger: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path)
    with surroundings(tmp_path, {"PYTHONPATH": str(stranger)}):
        two = {"resources.devices": 2, "parallel": "none"}
        found = run_purpose("ranks", scenario, overrides=two)
    assert found == [[0, 2, None], [1, 2, None]]
    assert [path.name for path in tmp_path.iterdir()] == [scenario.name], "nothing is stored"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "is broken: ModuleNotFoundError: No module named 'no_such_module'"),
        ("failing", "has failed with stack 'other': ZeroDivisionError: division by zero"),
        ("unwritable", "is broken: what it returned is no JSON"),
    ],
)
def test_a_purpose_that_fails_is_named_with_its_distribution(
    stranger: Path, tmp_path: Path, name: str, reason: str
) -> None:
    scenario = write_nulls(tmp_path)
    with (
        surroundings(tmp_path, {"PYTHONPATH": str(stranger)}),
        pytest.raises(AccelBenchError) as caught,
    ):
        run_purpose(name, scenario, stack="other")
    assert f"the purpose {name!r} of a-stranger 1.0 {reason}" in str(caught.value)


def test_a_purpose_that_there_is_not_gets_the_nearest_name(stranger: Path, tmp_path: Path) -> None:
    scenario = write_nulls(tmp_path)
    with (
        surroundings(tmp_path, {"PYTHONPATH": str(stranger)}),
        pytest.raises(PluginError, match="no purpose is called 'rank'; did you mean 'ranks'"),
    ):
        run_purpose("rank", scenario)


@pytest.mark.parametrize("name", OWN_PURPOSES)
def test_names_of_the_core_are_no_purposes_of_others(name: str, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=f"'{name}' is a purpose of the core; a further one"):
        run_purpose(name, write_nulls(tmp_path))


def test_the_purpose_of_the_documentation_counts_parameters_and_takes_a_step(
    tmp_path: Path,
) -> None:
    site = install_page("purposes.md", tmp_path)
    scenario = write(tmp_path, "small", 1, {"baseline": []})
    done = call("parameters", str(scenario), folder=tmp_path, PYTHONPATH=str(site))
    figures = r"baseline: ([\d,]+) parameters, of which \1 are trained; the first step has"
    assert re.fullmatch(rf"{figures} a loss of \d\.\d+\n", done.out), done.err
