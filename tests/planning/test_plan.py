"""The plan: what a scenario expands into, what is left out with its reason, what is refused."""

from __future__ import annotations

import importlib
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_plugins.distribution import install
from faults.program import null_scenario, write_scenario

from accel_bench.documents.load import parse_value
from accel_bench.documents.presets import preset_path
from accel_bench.errors import PluginError, ScenarioError, install_command
from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.planning import activation
from accel_bench.planning.activation import with_gpu_metrics
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.plugins import registry
from accel_bench.plugins.registry import installed
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import Scenario


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine, as if it had no GPU."""
    return read_machine().model_copy(update={"gpus": ()})


@pytest.fixture
def plan_of(tmp_path: Path, machine: Machine) -> Any:
    """Plan a scenario."""

    def make(
        plan_request: PlanRequest | None = None, here: Machine | None = None, **changes: Any
    ) -> Plan:
        stacks = changes.pop("stacks", {"baseline": [], "other": []})
        path = write_scenario(tmp_path / "scenario.yaml", null_scenario(stacks, **changes))
        return make_plan(read_draft(path), here or machine, plan_request or PlanRequest())

    return make


def points(plan: Plan) -> list[tuple[str, dict[str, Any]]]:
    """Stack and sweep values of each experiment."""
    return [(one.experiment.stack.name, one.experiment.sweep) for one in plan.planned]


def test_sweep_points_are_outermost_and_stacks_within(plan_of: Any) -> None:
    plan = plan_of(sweep={"data.sequence_length": [16, 32]}, data={"use": "null"})
    assert points(plan) == [
        (stack, {"data.sequence_length": length})
        for length in (16, 32)
        for stack in ("baseline", "other")
    ]
    assert plan.runs == 4


def test_keys_that_move_together_are_one_axis(plan_of: Any) -> None:
    zipped = {"train.micro_batch_size": [1, 2], "train.gradient_accumulation": [4, 2]}
    plan = plan_of(stacks={"baseline": []}, zip=zipped)
    sizes = [one.experiment.scenario.train.global_batch_size for one in plan.planned]
    assert sizes == [4, 4]


def test_keys_that_move_together_need_equally_many_values(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match="need equally many values"):
        plan_of(zip={"train.micro_batch_size": [1, 2], "train.seed": [1]})


def test_a_swept_key_that_is_also_set_is_refused_with_both_places(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match=r"'data.sequence_length' is swept, and also set at "):
        plan_of(sweep={"data.sequence_length": [16, 32]})


def test_a_key_that_a_shipped_scenario_sets_can_be_swept_and_the_plan_says_so(
    machine: Machine,
) -> None:
    request = PlanRequest(overrides=(("sweep.train.micro_batch_size", [1, 4]),))
    plan = make_plan(read_draft(preset_path("scenarios", "quickstart")), machine, request)
    sizes = [one.experiment.scenario.train.micro_batch_size for one in plan.planned]
    assert sizes == [1] * 4 + [4] * 4
    assert plan.notices[0] == (
        "train.micro_batch_size is swept (--set sweep.train.micro_batch_size), which replaces its "
        "value (quickstart.yaml:6:9)"
    )


def test_points_of_the_sweep_are_chosen_by_their_tags(plan_of: Any) -> None:
    sweep = {"train.seed": [1, 2, 12]}
    made = [plan_of(PlanRequest(tags=tags), sweep=sweep) for tags in [("seed_1",), ("seed_*2",)]]
    seeds = [[one.experiment.scenario.train.seed for one in plan.planned] for plan in made]
    assert seeds == [[1, 1], [2, 2, 12, 12]]
    assert made[0].planned[0].experiment.tag == "seed_1"
    with pytest.raises(ScenarioError, match="has the tag 'sed_1'; did you mean 'seed_1'"):
        plan_of(PlanRequest(tags=("seed_1", "sed_1")), sweep=sweep)


def test_a_tag_does_not_change_the_id(plan_of: Any) -> None:
    sweep = {"train.seed": [1]}
    ids = {plan_of(sweep=sweep, tag=tag).planned[0].experiment.id for tag in ("off", {})}
    assert len(ids) == 1


def test_a_batch_that_devices_cannot_share_is_refused_with_the_numbers(plan_of: Any) -> None:
    resources = {"device": "cpu", "devices": 3}
    with pytest.raises(ScenarioError, match=r"4 cannot be divided by .* 3 devices = 3"):
        plan_of(train={"global_batch_size": 4}, resources=resources, parallel={"use": "none"})


def test_what_the_file_excludes_is_skipped_with_its_reason(plan_of: Any) -> None:
    rule = {"when": {"stack": "other", "train.seed": [2, 3]}, "because": "known to diverge"}
    plan = plan_of(sweep={"train.seed": [1, 2, 3]}, exclude=[rule])
    skipped = [(p.experiment.stack.name, p.experiment.sweep, p.skipped) for p in plan.planned]
    reason = ("excluded: known to diverge",)
    assert [entry for entry in skipped if entry[2]] == [
        ("other", {"train.seed": 2}, reason),
        ("other", {"train.seed": 3}, reason),
    ]
    assert plan.runs == 4


def test_a_sweep_of_too_many_runs_says_how_to_split_it(plan_of: Any) -> None:
    sweep = {
        "train.seed": list(range(30)),
        "data.seed": list(range(20)),
        "model.dtype": ["float32"],
    }
    part = re.escape("run a part of it, such as --set 'sweep.data.seed=[0]' (60), or raise")
    with pytest.raises(ScenarioError, match=f"asks for 1,200 runs, .*{part}"):
        plan_of(sweep=sweep)


def test_a_million_points_are_refused_before_they_are_made(plan_of: Any) -> None:
    sweep = {"train.seed": list(range(1000)), "data.seed": list(range(1000))}
    tracemalloc.start()
    with pytest.raises(ScenarioError, match=r"2,000,000 runs, more than --max-runs 1,000"):
        plan_of(sweep=sweep)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A million points would take gigabytes.
    assert peak < 50 * 2**20


def test_the_limit_can_be_moved(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match=r"--max-runs 3;"):
        plan_of(PlanRequest(max_runs=3), sweep={"train.seed": [1, 2]})
    assert plan_of(PlanRequest(max_runs=4), sweep={"train.seed": [1, 2]}).runs == 4


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "HF_TOKEN", "BASH_ENV", "HOME"]
)
def test_a_variable_beyond_the_list_needs_trust(plan_of: Any, name: str) -> None:
    with pytest.raises(ScenarioError, match=f"may not set {name}; if you trust it, use --allow-e"):
        plan_of(environment={name: "value"})
    trusted = plan_of(PlanRequest(allow_environment=True), environment={name: "value"})
    assert trusted.planned[0].experiment.scenario.environment == {name: "value"}


COUNTED = """
from accel_bench import Options, Plugin, hookimpl

MADE = []

class Size(Options):
    size: int = 1

class Counted(Plugin[Size]):
    def __init__(self, options, name=""):
        super().__init__(options, name)
        MADE.append(options.size)

    @hookimpl
    def accelerate_model(self, run):
        return None
"""


def test_plugins_are_made_once_for_each_stack_and_its_options(
    plan_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "counted", {"counted": "Counted"}, COUNTED)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    installed.cache_clear()
    stacks = {"baseline": [], "one": ["counted"], "other": [{"use": "counted", "size": 2}]}
    sweep = {
        "stacks.other.counted.size": [2, 3],
        "engine.step_seconds": [0.001, 0.002],
        "train.seed": [1, 2, 3],
    }
    plan = plan_of(stacks=stacks, sweep=sweep, engine={"use": "null"})
    installed.cache_clear()
    assert len(plan.planned) == len(stacks) * 2 * 2 * 3
    # By the engine's options: `one` twice, `other` twice for each of its own.
    assert sorted(importlib.import_module("counted").MADE) == [1, 1, 2, 2, 3, 3]
    assert len({id(one.active) for one in plan.planned}) == 2 + 2 + 4


def test_two_stacks_that_do_the_same_are_the_same_experiment(plan_of: Any) -> None:
    first, second = plan_of().planned
    assert first.experiment.id == second.experiment.id


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"name": "renamed"}, True),
        ({"description": "asks something else"}, True),
        ({"measure": {"warmup": 2, "steps": 4, "rounds": 9, "timeout_seconds": 5.0}}, True),
        ({"measure": {"warmup": 3, "steps": 4}}, False),
        ({"train": {"seed": 1}}, False),
        ({"data": {"use": "null", "sequence_length": 17}}, False),
        ({"engine": {"use": "null", "step_seconds": 0.01}}, False),
        ({"environment": {"OMP_WAIT_POLICY": "active"}}, False),
    ],
)
def test_the_id_changes_with_what_changes_the_result(
    plan_of: Any, changes: dict[str, Any], same: bool
) -> None:
    before = plan_of().planned[0].experiment.id
    assert (plan_of(**changes).planned[0].experiment.id == before) is same


def test_an_older_gpu_than_a_plugin_needs_is_a_reason(
    plan_of: Any, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accel_bench.builtin.null import Null

    monkeypatch.setattr(Null, "minimum_compute_capability", (9, 0))
    gpu = GPU(index=0, name="Old", uuid="GPU-0", memory_bytes=1, compute_capability=(8, 6))
    versions = {**machine.versions, "torch": "2.13.0"}
    here = machine.model_copy(update={"gpus": (gpu,), "versions": versions})
    plan = plan_of(here=here, resources={"device": "cuda"})
    assert "needs compute capability 9.0, Old has 8.6" in plan.nothing


def test_devices_that_are_not_here_are_a_reason(plan_of: Any) -> None:
    plan = plan_of(resources={"device": "cuda"})
    assert "1 CUDA devices are asked for, 0 are here" in plan.nothing
    assert not plan.runnable


def test_the_baseline_always_runs_beside_what_is_asked_for(plan_of: Any) -> None:
    stacks = {"baseline": [], "one": [], "two": []}
    assert [name for name, _ in points(plan_of(PlanRequest(only=("two",)), stacks=stacks))] == [
        "baseline",
        "two",
    ]
    plan_request = PlanRequest(only=("two",), no_baseline=True)
    assert [name for name, _ in points(plan_of(plan_request, stacks=stacks))] == ["two"]


@pytest.fixture
def without_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the extra `compile`."""
    left = tuple(plugin for plugin in installed() if plugin.name != "torch-compile")
    monkeypatch.setattr(registry, "installed", lambda: left)


@pytest.mark.usefixtures("without_compile")
def test_a_stack_whose_plugin_an_extra_would_bring_is_skipped_with_the_command(
    plan_of: Any,
) -> None:
    plan = plan_of(stacks={"baseline": [], "compiled": ["torch-compile"], "other": []})
    skipped = {one.experiment.stack.name: one.skipped for one in plan.planned}
    reason = f"the plugin 'torch-compile' is not installed; {install_command('compile')}"
    assert skipped == {"baseline": (), "compiled": (reason,), "other": ()}


@pytest.mark.usefixtures("without_compile")
@pytest.mark.parametrize(
    ("stacks", "request_"),
    [
        ({"baseline": ["torch-compile"], "other": []}, {}),
        ({"baseline": [], "compiled": ["torch-compile"]}, {"only": ("compiled",)}),
        ({"baseline": []}, {"plugins": ("torch-compile",)}),
        ({"baseline": [], "other": ["torch-compil"]}, {}),
    ],
    ids=["baseline", "--only", "--plugin", "unknown"],
)
def test_a_missing_plugin_is_an_error_where_it_is_needed_or_unknown(
    plan_of: Any, stacks: dict[str, Any], request_: dict[str, Any]
) -> None:
    with pytest.raises(PluginError, match=re.escape(install_command("compile"))):
        plan_of(PlanRequest(**request_), stacks=stacks)


def test_an_unknown_stack_gets_the_nearest_name(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match="no stack is called 'othre'; did you mean 'other'"):
        plan_of(PlanRequest(only=("othre",)))


@pytest.mark.parametrize("text", ["2e-4", "089", "1e5", "-1", ".5", "+3", "no", "null", "a: b"])
def test_a_text_that_looks_like_something_else_survives_being_written_down(text: str) -> None:
    from accel_bench.runner.artifacts import scenario_text

    written = scenario_text({"value": text})
    assert parse_value(written, "written") == {"value": text}


NEEDY = """
from accel_bench import Options, Plugin
class Needy(Plugin[Options]):
    dtypes = frozenset({"bfloat16", "float16"})
    needs_adapter = True
"""


@pytest.fixture
def needy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A plugin that needs an adapter and half precision is installed."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    install(tmp_path / "site", "needy", {"needy": "Needy"}, NEEDY)
    installed.cache_clear()
    yield
    installed.cache_clear()


@pytest.mark.usefixtures("needy")
def test_what_a_plugin_needs_is_added_to_every_stack(plan_of: Any) -> None:
    plan = plan_of(stacks={"baseline": [], "n": ["needy"]})
    assert {one.experiment.scenario.adapter.use for one in plan.planned} == {"lora"}
    assert {one.experiment.scenario.model.dtype for one in plan.planned} == {"bfloat16"}
    assert len(plan.notices) == 2


@pytest.mark.usefixtures("needy")
@pytest.mark.parametrize(
    "changes",
    [
        {"stacks": {"baseline": [], "n": {"set": {"model.dtype": "float16"}, "use": ["needy"]}}},
        {"stacks": {"baseline": [], "n": ["needy"]}, "sweep": {"model.dtype": ["float16"]}},
    ],
)
def test_what_the_stack_sets_or_the_file_sweeps_is_not_added(
    plan_of: Any, changes: dict[str, Any]
) -> None:
    plan = plan_of(**changes)
    assert not any(notice.startswith("model.dtype") for notice in plan.notices)
    assert plan.planned[1].experiment.scenario.model.dtype == "float16"


@pytest.mark.usefixtures("needy")
def test_what_a_stack_that_is_not_chosen_needs_is_not_added(plan_of: Any) -> None:
    plan = plan_of(PlanRequest(only=("baseline",)), stacks={"baseline": [], "n": ["needy"]})
    assert plan.notices == ()


@pytest.mark.usefixtures("needy")
def test_options_of_an_adapter_without_a_name_are_those_of_the_one_that_is_added(
    plan_of: Any,
) -> None:
    plan = plan_of(adapter={"r": 4}, stacks={"baseline": [], "n": ["needy"]})
    assert plan.planned[0].experiment.scenario.adapter.options == {"r": 4}


def test_options_of_an_adapter_that_is_none_are_refused(plan_of: Any) -> None:
    with pytest.raises(PluginError, match=r"adapter: none has no option r; .*adapter\.use"):
        plan_of(adapter={"r": 4})


def test_a_plugin_does_not_replace_a_stack_of_the_same_name(plan_of: Any) -> None:
    stacks = {"baseline": [], "example": [{"use": "example", "factor": 2.0}]}
    with pytest.raises(ScenarioError, match=r"has a stack 'example' of its own.*--only example"):
        plan_of(PlanRequest(plugins=("example",)), stacks=stacks)


DEEP = "model.overrides" + ".a" * 400


@pytest.mark.parametrize(
    "changes",
    [{"sweep": {DEEP: [1]}}, {"stacks": {"baseline": [], "other": {"set": {DEEP: 1}}}}],
)
def test_a_key_of_hundreds_of_parts_is_refused(plan_of: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"402 parts; at most"):
        plan_of(**changes)
    with pytest.raises(ScenarioError, match=r"402 parts; at most"):
        plan_of(PlanRequest(overrides=((DEEP, 1),)))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        pytest.param({}, ["memory", "nvml"], marks=pytest.mark.box),
        pytest.param({"resources": {"device": "cuda"}}, ["memory", "nvml"], marks=pytest.mark.box),
        ({"resources": {"device": "cpu"}}, ["memory"]),
        ({"metrics": ["memory"]}, ["memory"]),
        ({"metrics": []}, []),
    ],
)
def test_a_gpu_is_watched_from_outside_unless_metrics_were_chosen(
    tmp_path: Path, machine: Machine, changes: dict[str, Any], names: list[str]
) -> None:
    gpu = GPU(index=0, name="a GPU", uuid="GPU-1", memory_bytes=2**34, compute_capability=(9, 0))
    here = machine.model_copy(update={"gpus": (gpu,), "versions": {"torch": "2.13.0"}})
    scenario = null_scenario({"baseline": [], "other": []})
    del scenario["metrics"]
    path = write_scenario(tmp_path / "scenario.yaml", {**scenario, **changes})
    plan = make_plan(read_draft(path), here, PlanRequest())
    for planned in plan.planned:
        assert [use.use for use in planned.experiment.scenario.metrics] == names
        assert [m.name for m in planned.active.plugins if m.slot == "metrics"] == names


def test_without_the_metrics_of_a_gpu_it_is_measured_by_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activation, "installed", lambda: ())
    scenario = Scenario.model_validate({"model": "gpt2", "resources": {"device": "cuda"}})
    assert with_gpu_metrics(scenario).metrics == scenario.metrics != ()


def test_seeds_of_weights_and_data_move_together_from_those_of_the_file(plan_of: Any) -> None:
    plan = plan_of(PlanRequest(seeds=3), train={"seed": 7})
    swept = [one.experiment.sweep for one in plan.planned if one.experiment.stack.name == "other"]
    assert swept == [{"train.seed": 7 + n, "data.seed": n} for n in range(3)]


@pytest.mark.parametrize("count", [1001, 10**19])
def test_more_seeds_than_runs_are_refused_before_there_is_a_list_of_them(
    plan_of: Any, count: int
) -> None:
    with pytest.raises(
        ScenarioError, match=rf"asks for {count:,} runs, more than --max-runs 1,000"
    ):
        plan_of(PlanRequest(seeds=count))


def test_seeds_cannot_be_added_to_a_zip(plan_of: Any) -> None:
    with pytest.raises(ScenarioError, match="--seeds cannot be added to a zip"):
        plan_of(PlanRequest(seeds=2), zip={"train.learning_rate": [0.1, 0.2]})
