"""A ladder from the file to the report: one interleaved run, resumed, narrowed, dry, refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import Done, call, write_nulls
from fault_plugins.distribution import install

from accel_bench.plugins.registry import installed

SWITCHES = """\
from accel_bench import Options, Plugin, hookimpl


class SwitchOptions(Options):
    first: bool | None = None
    '''One part.'''

    second: bool = False
    '''Another part.'''

    bits: int = 8
    '''No switch.'''


class Switches(Plugin[SwitchOptions]):
    '''Parts that are switched on one by one.'''

    Options = SwitchOptions

    @hookimpl
    def report_evidence(self, run):
        return self.options.model_dump()


class Elsewhere(Plugin):
    '''Runs on no CPU.'''

    devices = frozenset({"cuda"})

    @hookimpl
    def report_evidence(self, run):
        return {}
"""

LADDER = "[{set: {engine.step_seconds: 0.001}, name: step}, switches.first, switches.second]"
STACKS = ["baseline", "1+step", "2+first", "3+second", "without-step", "without-first"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in, with a ladder in `nulls.yaml` and the plugins installed."""
    site = tmp_path / "site"
    site.mkdir()
    install(site, "switching", {"switches": "Switches", "elsewhere": "Elsewhere"}, SWITCHES)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    # Git must not find the checkout: a file saved while this runs would change every id.
    monkeypatch.setenv("GIT_DIR", os.devnull)
    monkeypatch.chdir(tmp_path)
    installed.cache_clear()
    write_ladder(tmp_path, LADDER)
    yield tmp_path
    installed.cache_clear()


def write_ladder(folder: Path, ladder: str, **changes: str) -> Path:
    """A scenario without torch with this ladder, and no other stacks unless asked."""
    stacks = changes.pop("stacks", "{}")
    return write_nulls(folder, ladder=ladder, stacks=stacks, resources="{device: cpu}", **changes)


def run(*arguments: str) -> Done:
    """Run `nulls.yaml`."""
    return call("run", "nulls.yaml", "-q", *arguments)


def document(*arguments: str) -> dict[str, Any]:
    """What `run --format json` prints; the run must succeed."""
    done = run("--format", "json", *arguments)
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def stacks(found: dict[str, Any]) -> list[str]:
    """Names of the stacks, in order."""
    return [experiment["stack"] for experiment in found["experiments"]]


def test_a_ladder_is_run_in_one_session_and_reported_from_the_store_again(folder: Path) -> None:
    found = document()
    assert stacks(found) == STACKS
    assert [row["status"] for row in found["experiments"]] == ["ok"] * 6
    evidence = {row["stack"]: row["evidence"].get("switches") for row in found["experiments"]}
    assert evidence["2+first"] == {"first": True, "second": False, "bits": 8}
    assert evidence["without-first"] == {"first": False, "second": True, "bits": 8}
    steps = [
        (s["item"], s["adds"]["rounds"], s["left_out"]["rounds"])
        for s in found["sections"]["ladder"]
    ]
    assert steps == [("step", 1, 1), ("first", 1, 1), ("second", 1, 1)]

    again = call("run", "nulls.yaml", "--resume", "--format", "json")
    assert "nulls: 0 runs" in again.err
    assert json.loads(again.out)["sections"]["ladder"] == found["sections"]["ladder"]

    stored = json.loads(call("results", "export", "--format", "json").out)
    held = {r["experiment"]["stack"]["name"]: r["experiment"]["stack"]["ladder"] for r in stored}
    assert held["without-step"] == {"items": ["step", "first", "second"], "holds": [[1, 2]]}
    compared = call("compare", "1+step", "2+first", "--format", "json")
    assert "uses" in [fact["key"] for fact in json.loads(compared.out)["declared"]]


def test_only_runs_a_rung_beside_its_baseline() -> None:
    assert stacks(document("--only", "2+first", "--dry-run")) == ["baseline", "2+first"]


def test_a_plugin_of_the_command_line_and_a_stack_of_the_file_run_beside_it(folder: Path) -> None:
    write_ladder(folder, "[switches.first]", stacks="{mine: [switches]}")
    found = document("--dry-run", "--plugin", "switches")
    assert stacks(found) == ["baseline", "1+first", "mine", "switches"]


def test_overrides_reach_every_stack_and_the_ladder_itself() -> None:
    found = document("--dry-run", "--set", "ladder=[switches.second]", "--set", "train.seed=3")
    assert stacks(found) == ["baseline", "1+second"]


def test_a_wrong_item_of_the_command_line_is_looked_for_there_and_not_in_the_file() -> None:
    done = run("--dry-run", "--set", "ladder=[switchez]")
    assert done.code == 2
    assert "--set ladder: ladder item 'switchez'" in done.err


def test_a_rung_is_not_changed_behind_its_ladder_s_back() -> None:
    done = run("--dry-run", "--set", "stacks.2+first.switches.bits=4")
    assert done.code == 2
    assert "--set 'ladder=[...]'" in done.err


def test_a_rung_that_cannot_run_here_is_skipped_with_all_above_and_the_rest_goes_on(
    folder: Path,
) -> None:
    write_ladder(folder, "[switches.first, elsewhere, switches.second]")
    found = document()
    ended = {row["stack"]: row["status"] for row in found["experiments"]}
    assert ended == {
        "baseline": "ok",
        "1+first": "ok",
        "2+elsewhere": "skipped",
        "3+second": "skipped",
        "without-first": "skipped",
        "without-elsewhere": "ok",
    }
    reasons = [row["reasons"] for row in found["experiments"] if row["status"] == "skipped"]
    assert all("elsewhere: does not work with device cpu" in why for (why,) in reasons)
    assert found["sections"]["ladder"][1]["adds"]["verdict_reason"] == "2+elsewhere was skipped"


@pytest.mark.parametrize(
    ("ladder", "message"),
    [
        (
            "[switches, switchez.first]",
            "'switchez.first': 'switchez' is neither a plugin nor a part",
        ),
        ("[switches, switchez]", "ladder item 'switchez': no plugin is called 'switchez'"),
        ("[optimzer.fused]", "did you mean 'optimizer'?"),
        ("[switches.frist]", "plugin 'switches' has no option 'frist'; did you mean 'first'?"),
        ("[switches.first, switches.frist]", "'frist'; did you mean 'first'?"),
        ("[switches.bits]", "write {use: switches, bits: VALUE}"),
        (
            "[{use: switches, bit: 4}]",
            "'1+switches': plugin 'switches': unknown key 'bit'; did you",
        ),
        ("[switches, switches.first]", "another item has 'switches' without it, and which"),
        ("[{use: switches, bits: 4}, switches.first]", "another item has 'switches' without it"),
        ("[engine.step_secs]", "unknown key 'step_secs'; did you mean 'step_seconds'?"),
        ("[train.sed]", "unknown key 'train.sed'; did you mean 'seed'?"),
    ],
)
def test_a_wrong_item_ends_in_exit_2_with_its_place_and_the_nearest_name(
    ladder: str, message: str, folder: Path
) -> None:
    write_ladder(folder, ladder)
    done = run("--dry-run")
    assert done.code == 2
    assert message in done.err
    assert "nulls.yaml:" in done.err


def test_a_part_is_not_named_on_a_baseline_that_has_its_plugin_without_it(folder: Path) -> None:
    write_ladder(folder, "[switches.first]", stacks="{baseline: [switches]}")
    done = run("--dry-run")
    assert done.code == 2
    assert "the baseline has 'switches' without it" in done.err


def test_an_option_that_is_off_by_default_may_be_switched_on_beside_its_plugin(
    folder: Path,
) -> None:
    write_ladder(folder, "[switches, switches.second]")
    assert stacks(document("--dry-run")) == ["baseline", "1+switches", "2+second"]


def test_a_plugin_of_a_rung_that_is_not_chosen_is_not_looked_up(folder: Path) -> None:
    write_ladder(folder, "[switches.first, nowhere]")
    assert stacks(document("--only", "1+first", "--dry-run")) == ["baseline", "1+first"]


def test_the_table_on_the_terminal_is_at_most_100_columns_wide() -> None:
    printed = run("--format", "table").out
    table = printed.partition("\nResults: ")[0]
    assert "ladder of nulls" in table
    assert max(map(len, table.splitlines())) <= 100
