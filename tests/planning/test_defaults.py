"""What plugins need is added to the work of every stack, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, write_nulls
from fault_plugins.distribution import install

from accel_bench.errors import PluginError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.plugins.registry import installed
from accel_bench.scenario.find import read_draft

SOURCE = """\
from accel_bench import Plugin

class Adapted(Plugin):
    '''Needs an adapter.'''
    needs_adapter = True

class Halves(Plugin):
    '''Works in either half precision.'''
    dtypes = frozenset({"bfloat16", "float16"})

class Float16(Plugin):
    '''Works in float16 alone.'''
    dtypes = frozenset({"float16"})

class Wide(Plugin):
    '''Works in float32 and bfloat16.'''
    dtypes = frozenset({"bfloat16", "float32"})

class Both(Plugin):
    '''Needs an adapter and half precision.'''
    needs_adapter = True
    dtypes = frozenset({"bfloat16", "float16"})
"""

PLUGINS = {
    "adapted": "Adapted",
    "halves": "Halves",
    "float16-only": "Float16",
    "wide": "Wide",
    "both": "Both",
}


@pytest.fixture
def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Plan]]:
    """Plan a scenario where these plugins are installed."""
    (tmp_path / "site").mkdir()
    name = f"bench-needs-{tmp_path.name.replace('_', '-')}"
    install(tmp_path / "site", name, PLUGINS, SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    installed.cache_clear()

    def make(*plugins: str, **changes: str) -> Plan:
        path = write_nulls(tmp_path, **{"stacks": "{baseline: []}", **changes})
        return make_plan(read_draft(path), read_machine(), PlanRequest(plugins=plugins))

    yield make
    installed.cache_clear()


def settings(plan: Plan) -> set[tuple[str, str]]:
    """Adapter and dtype of the experiments that run; one pair when all stacks do the same work."""
    works = [one.experiment.scenario for one in plan.runnable]
    return {(work.adapter.use, work.model.dtype) for work in works}


@pytest.mark.parametrize(
    ("plugins", "adapter", "dtype"),
    [
        (["adapted"], "lora", "float32"),
        (["halves"], "none", "bfloat16"),
        (["float16-only"], "none", "float16"),
        (["wide"], "none", "float32"),
        (["both"], "lora", "bfloat16"),
        (["both", "adapted"], "lora", "bfloat16"),
        (["halves", "float16-only"], "none", "float16"),
        (["halves+float16-only"], "none", "float16"),
        (["halves", "wide"], "none", "bfloat16"),
    ],
)
def test_what_is_needed_is_the_same_in_every_stack_the_baseline_included(
    plan_of: Any, plugins: list[str], adapter: str, dtype: str
) -> None:
    plan = plan_of(*plugins)
    assert len(plan.runnable) == 1 + len(plugins)
    assert settings(plan) == {(adapter, dtype)}
    assert len(plan.notices) == (adapter != "none") + (dtype != "float32")


def test_two_plugins_that_share_no_dtype_do_not_both_run(plan_of: Any) -> None:
    with pytest.raises(PluginError, match="'wide' cannot run here: wide: does not work with mode"):
        plan_of("float16-only", "wide")


def test_the_program_says_what_it_added_and_for_whom(plan_of: Any, tmp_path: Path) -> None:
    plan_of()
    done = call("run", "nulls.yaml", "--plugin", "both", "--dry-run")
    assert done.code == 0, done.err
    assert "notice: adapter: lora added to every stack: both needs one" in done.out
    assert "notice: model.dtype: bfloat16 set for every stack: both needs it" in done.out


def test_what_the_file_has_decided_stays(plan_of: Any) -> None:
    plan = plan_of("both", adapter="{use: lora, r: 4}", model="{use: null, dtype: float16}")
    assert settings(plan) == {("lora", "float16")}
    assert plan.notices == ()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"stacks": "{baseline: [], q: [autogptk]}"}, "nulls.yaml:6:28: no plugin is called"),
        ({"stacks": "{baseline: [], q: [{use: autogptk}]}"}, "nulls.yaml:6:"),
        ({"adapter": "{use: autogptk}"}, "nulls.yaml:8:11: no plugin is called"),
        ({"optimizer": "autogptk"}, "nulls.yaml:4:1: no plugin is called"),
        ({"metrics": "[memory, memori]"}, "nulls.yaml:8:19: no plugin is called"),
        ({"metrics": "[{use: memory, rate: 1}]"}, "nulls.yaml:8:25: plugin 'memory' (as metrics)"),
        (
            {"stacks": "{baseline: [], c: [{use: ddp, bukket: 1}]}"},
            "nulls.yaml:6:39: plugin 'ddp': unknown key 'bukket'",
        ),
        (
            {"model": "{use: huggingface, id: tiny-llama-cpu, num_hidden_layers: 1}"},
            "configuration stands under model.overrides",
        ),
        ({"train": "{global_batch_size: 3, micro_batch_size: 2}"}, "nulls.yaml:8:9: train.global"),
    ],
)
def test_a_wrong_plugin_or_option_is_located_in_the_file(
    plan_of: Any, tmp_path: Path, changes: dict[str, str], place: str
) -> None:
    path = write_nulls(tmp_path, **changes)
    done = call("run", str(path), "--dry-run")
    assert done.code == 2
    assert place in done.err
    assert done.err.count("\n") == 1
