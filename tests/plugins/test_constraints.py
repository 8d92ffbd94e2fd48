"""What a plugin declares that it needs: a reason in the plan, and how the program ends with it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.program import call, write_nulls
from fault_plugins.distribution import install

from accel_bench.errors import PluginError
from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.plugins.constraints import process_group_backends, refuse_architecture
from accel_bench.plugins.registry import installed, unmet_requirement
from accel_bench.scenario.find import read_draft

SOURCE = """\
from accel_bench import Plugin, hookimpl


class Picky(Plugin):
    '''Needs something.'''

    {declared}

    @hookimpl
    def accelerate_model(self, run):
        pass
"""

UNMET = {
    "requires": ("requires = ('absent>=7.6,<8',)", "picky: absent>=7.6,<8 is not installed"),
    "version": ("requires = ('pydantic>=999',)", "picky: pydantic>=999 is needed, "),
    "devices": (
        "devices = frozenset({'cuda', 'xpu'})",
        "picky: does not work with device cpu; it works with cuda, xpu",
    ),
    "dtypes": (
        "dtypes = frozenset({'float16', 'bfloat16'})",
        "picky: does not work with model.dtype float32; it works with bfloat16, float16",
    ),
    "tasks": ("tasks = frozenset({'chat'})", "picky: does not work with task causal-lm; it works "),
    "modes": ("modes = frozenset({'serve'})", "picky: does not work with mode train; it works wi"),
    "adapter": ("needs_adapter = True", "picky: needs an adapter, and the scenario has none"),
    "architecture": (
        "restricted_model_archs = frozenset({'OPTForCausalLM', 'GPT2LMHeadModel'})",
        "picky: does not support LlamaForCausalLM; it supports GPT2LMHeadModel, OPTForCausalLM",
    ),
}
"""A declaration that the scenario below does not meet, and the reason that is given."""

SCENARIO = {
    "model": "{use: null, id: tiny-llama-cpu, dtype: float32}",
    "adapter": "none",
    "stacks": "{baseline: [], asked: [picky]}",
    "resources": "{device: cpu}",
}
"""Settles what a plugin's need would otherwise add."""

each = pytest.mark.parametrize("what", sorted(UNMET))


@pytest.fixture
def pick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """Install the plugin `picky` with a declaration, and write a scenario whose stack uses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    count = iter(range(10))

    def make(declared: str, requires: tuple[str, ...] = (), **changes: str) -> Path:
        name = f"bench-{tmp_path.name.replace('_', '-')}-{next(count)}"
        install(
            tmp_path / "site", name, {"picky": "Picky"}, SOURCE.format(declared=declared), requires
        )
        installed.cache_clear()
        return write_nulls(tmp_path, **{**SCENARIO, **changes})

    unmet_requirement.cache_clear()
    yield make
    installed.cache_clear()
    unmet_requirement.cache_clear()


def reasons(path: Path, *arguments: str) -> list[str]:
    """Reasons of the stack that uses the plugin, as the plan prints them."""
    done = call("run", str(path), "--dry-run", "--format", "json", *arguments)
    assert done.code == 0, done.err
    rows = {row["stack"]: row for row in json.loads(done.out)["experiments"]}
    assert rows["baseline"]["reasons"] == []
    found: list[str] = rows["asked"]["reasons"]
    assert rows["asked"]["status"] == ("skipped" if found else "planned")
    return found


@each
def test_in_a_matrix_it_is_skipped_with_its_reason(pick: Any, what: str) -> None:
    declared, reason = UNMET[what]
    (found,) = reasons(pick(declared))
    assert found.startswith(reason)


@each
def test_named_by_only_it_ends_with_2_and_one_line(pick: Any, what: str) -> None:
    declared, reason = UNMET[what]
    done = call("run", str(pick(declared)), "--only", "asked", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: stack 'asked' cannot run here: {reason}")
    assert done.err.count("\n") == 1


@each
def test_named_by_plugin_it_ends_with_2_and_one_line(pick: Any, what: str) -> None:
    declared, reason = UNMET[what]
    path = pick(declared, stacks="{baseline: []}")
    done = call("run", str(path), "--plugin", "picky", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: stack 'picky' cannot run here: {reason}")
    assert done.err.count("\n") == 1


@each
def test_where_nothing_else_is_left_it_ends_with_3(pick: Any, what: str) -> None:
    declared, reason = UNMET[what]
    path = pick(declared, stacks="{asked: [picky]}")
    for dry in (["--dry-run"], []):
        done = call("run", str(path), *dry)
        assert done.code == 3
        assert f"error: nothing can run here: {reason}" in done.err


@each
def test_a_sweep_skips_only_the_points_that_do_not_fit(pick: Any, what: str) -> None:
    """Seeds stand for any point; the baseline runs at all of them."""
    path = pick(UNMET[what][0])
    done = call("run", str(path), "--set", "sweep.train.seed=[1, 2]", "--dry-run", "--format=json")
    rows = json.loads(done.out)["experiments"]
    assert [(row["stack"], row["status"]) for row in rows] == [
        ("baseline", "planned"),
        ("asked", "skipped"),
    ] * 2


def test_a_met_constraint_is_no_reason(pick: Any) -> None:
    declared = (
        "requires = ('pydantic>=2,<99', 'absent; python_version < \"3\"'); "
        "devices = frozenset({'cpu'}); dtypes = frozenset({'float32'}); "
        "restricted_model_archs = frozenset({'LlamaForCausalLM'})"
    )
    assert reasons(pick(declared)) == []


def test_all_problems_are_given_at_once(pick: Any) -> None:
    declared = (
        "requires = ('absent>=1', 'also-absent'); dtypes = frozenset({'float16'}); "
        "needs_adapter = True; devices = frozenset({'cuda'})"
    )
    found = reasons(pick(declared, ("pydantic>=999", "absent>=1")))
    assert [reason.removeprefix("picky: ").split(" ")[0] for reason in found] == [
        "pydantic>=999",
        "absent>=1",
        "also-absent",
        "does",
        "does",
        "needs",
    ]


def test_a_conflict_ends_with_2_always(pick: Any) -> None:
    path = pick("conflicts = frozenset({'example'})", stacks="{a: [], b: [example, picky]}")
    done = call("run", str(path), "--dry-run")
    assert done.code == 2
    assert "stack 'b': 'picky' conflicts with 'example'" in done.err


@pytest.mark.parametrize(
    ("swept", "skipped"),
    [("model.dtype=[float32, float16]", 1), ("model.id=[gpt2, opt-125m, mistral-7b]", 3)],
)
def test_a_constraint_is_held_against_each_value_of_a_sweep(
    pick: Any, swept: str, skipped: int
) -> None:
    declared = (
        "dtypes = frozenset({'float16'}); restricted_model_archs = frozenset({'LlamaForCausalLM'})"
    )
    path = pick(declared, model="{use: null}", stacks="{baseline: [], asked: [picky]}")
    done = call("run", str(path), "--set", f"sweep.{swept}", "--dry-run", "--format", "json")
    rows = json.loads(done.out)["experiments"]
    assert sum(row["status"] == "skipped" for row in rows) == skipped


# A library that is missing, a plugin of another contract.


def test_a_missing_library_of_an_extra_s_plugin_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    requires = ("accel-bench>=0.1,<0.2", "absent-quantizer>=7.6")
    source = SOURCE.format(declared="").replace("Picky", "AutoGPTQ")
    install(tmp_path, "accel-bench-gptq", {"autogptq": "AutoGPTQ"}, source, requires)
    installed.cache_clear()
    path = write_nulls(tmp_path, stacks="{baseline: []}")
    done = call("run", str(path), "--plugin", "autogptq", "--dry-run")
    installed.cache_clear()
    assert done.code == 2
    assert done.err == (
        "error: stack 'autogptq' cannot run here: autogptq: absent-quantizer>=7.6 is not "
        "installed; pip install ./plugins/gptq in a checkout of accel-bench\n"
    )


def test_a_plugin_of_another_contract_ends_with_2_also_in_a_matrix(pick: Any) -> None:
    path = pick("", ("accel-bench>=0.2,<0.3",))
    done = call("run", str(path), "--dry-run")
    assert done.code == 2
    assert f"{path}:" in done.err
    assert "is built for accel-bench>=0.2,<0.3; this is accel-bench 0.1" in done.err
    assert "plugins built for accel-bench>=0.1,<0.2" in done.err
    assert done.err.count("\n") == 1


# The model's architecture.

OPT_ONLY = "restricted_model_archs = frozenset({'OPTForCausalLM'})"


@pytest.mark.parametrize(
    ("architecture", "fits"), [("OPTForCausalLM", True), ("LlamaForCausalLM", False)]
)
def test_the_architecture_of_a_local_directory_is_read_from_its_configuration(
    pick: Any, tmp_path: Path, architecture: str, fits: bool
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    found = reasons(pick(OPT_ONLY, model=f"{{use: null, id: {folder}}}"))
    assert bool(found) is not fits


def test_the_architecture_of_a_name_of_the_catalog_is_on_its_card(pick: Any) -> None:
    path = pick(OPT_ONLY, model="{use: null}")
    assert reasons(path, "--set", "model.id=opt-125m") == []
    (found,) = reasons(path, "--set", "model.id=mistral-7b")
    assert "does not support MistralForCausalLM" in found


def test_of_many_architectures_the_first_few_are_named(pick: Any) -> None:
    many = [f"{letter}ForCausalLM" for letter in "GFEDCBA"]
    path = pick(f"restricted_model_archs = frozenset({many})", model="{use: null}")
    (found,) = reasons(path, "--set", "model.id=mistral-7b")
    assert found == (
        "picky: does not support MistralForCausalLM; it supports AForCausalLM, BForCausalLM, "
        "CForCausalLM and 4 others (`accel-bench plugins show picky`)"
    )


def test_another_task_is_the_only_reason_for_a_model_of_its_own(pick: Any) -> None:
    only = "tasks = frozenset({'chat'})\n    restricted_model_archs = frozenset({'OPTForCausalLM'})"
    (found,) = reasons(pick(only))
    assert found == "picky: does not work with task causal-lm; it works with chat"


def test_of_a_hub_id_the_plan_says_that_it_does_not_know(pick: Any) -> None:
    path = pick(OPT_ONLY, model="{use: null, id: some-org/some-model}")
    assert reasons(path) == []
    plan = json.loads(call("run", str(path), "--dry-run", "--format", "json").out)
    assert (
        "picky supports OPTForCausalLM: whether some-org/some-model is one of them is only known "
        "when it is loaded" in plan["notices"]
    )


def test_a_directory_without_a_configuration_ends_with_2(pick: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call("run", str(pick(OPT_ONLY, model="{use: null, id: ./empty}")), "--dry-run")
    assert done.code == 2
    assert "config.json cannot be read" in done.err


def test_the_worker_refuses_the_real_architecture_by_the_same_words(pick: Any) -> None:
    path = pick(OPT_ONLY, model="{use: null, id: some-org/some-model}")
    planned = make_plan(read_draft(path), read_machine(), PlanRequest()).planned
    baseline, asked = (one.active for one in planned)
    refuse_architecture(baseline, "LlamaForCausalLM")
    refuse_architecture(asked, "OPTForCausalLM")
    with pytest.raises(PluginError, match="picky: does not support LlamaForCausalLM; it supports"):
        refuse_architecture(asked, "LlamaForCausalLM")


def test_a_machine_with_too_little_memory_is_a_reason(tmp_path: Path) -> None:
    needs = {"resources": "{device: cpu, host_memory_gib: 100}"}
    small = read_machine().model_copy(update={"memory_bytes": 2**34})
    plan = make_plan(read_draft(write_nulls(tmp_path, **needs)), small, PlanRequest())
    lack = "this machine has 16.0 GiB of host memory, and resources.host_memory_gib is 100"
    assert {planned.skipped for planned in plan.planned} == {(lack,)}


@pytest.mark.parametrize(("backend", "runs"), [("gloo", True), ("nccl", False), ("fake", False)])
def test_a_backend_that_torch_lacks_is_a_reason(tmp_path: Path, backend: str, runs: bool) -> None:
    path = write_nulls(tmp_path, resources=f"{{device: cpu, backend: {backend}}}")
    plan = make_plan(read_draft(path), read_machine(), PlanRequest())
    lack = f"resources.backend is {backend}, and for cpu torch here has gloo"
    for planned in plan.planned:
        assert planned.skipped == () if runs else planned.skipped[0].startswith(lack)


def test_a_python_without_torch_gives_no_reason_against_a_backend() -> None:
    assert process_group_backends((sys.executable, "-S")) == {}
    assert "cpu" in process_group_backends(())["gloo"]


# GPUs, which this machine need not have.


def gpu_machine(*capabilities: tuple[int, int]) -> Machine:
    """This machine with GPUs, and a torch that can use them."""
    here = read_machine()
    gpus = tuple(
        GPU(index=n, name=f"GPU {n}", uuid=f"GPU-{n}", memory_bytes=2**34, compute_capability=one)
        for n, one in enumerate(capabilities)
    )
    versions = {**here.versions, "torch": "2.13.0"}
    return here.model_copy(update={"gpus": gpus, "versions": versions})


@pytest.mark.parametrize(
    ("needed", "reason"),
    [
        (16, None),
        # A device reports a little less than its nominal memory.
        (17, None),
        (24, "GPU 0 has 16.0 GiB of memory, and resources.device_memory_gib is 24"),
    ],
)
def test_a_device_of_too_little_memory_is_a_reason(
    tmp_path: Path, needed: int, reason: str | None
) -> None:
    resources = f"{{device: cuda, device_memory_gib: {needed}}}"
    draft = read_draft(write_nulls(tmp_path, resources=resources))
    plan = make_plan(draft, gpu_machine((8, 0)), PlanRequest())
    assert plan.planned[0].skipped == ((reason,) if reason else ())


def test_memory_of_devices_means_nothing_on_a_cpu(tmp_path: Path) -> None:
    draft = read_draft(write_nulls(tmp_path, resources="{device: cpu, device_memory_gib: 8}"))
    plan = make_plan(draft, read_machine(), PlanRequest())
    assert plan.planned[0].skipped == ("device_memory_gib is 8, and the device is cpu",)


@pytest.mark.parametrize(
    ("devices", "capabilities", "reasons"),
    [
        (1, [(8, 0)], []),
        (1, [(9, 0), (7, 5)], []),
        (1, [(7, 5)], ["picky: needs compute capability 8.0, GPU 0 has 7.5"]),
        (
            2,
            [(7, 0), (7, 5)],
            [
                "picky: needs compute capability 8.0, GPU 0 has 7.0",
                "picky: needs compute capability 8.0, GPU 1 has 7.5",
            ],
        ),
    ],
)
def test_the_devices_that_are_used_must_be_new_enough(
    pick: Any, devices: int, capabilities: list[tuple[int, int]], reasons: list[str]
) -> None:
    resources = f"{{device: cuda, devices: {devices}}}"
    path = pick("minimum_compute_capability = (8, 0)", resources=resources, parallel="none")
    plan = make_plan(read_draft(path), gpu_machine(*capabilities), PlanRequest())
    assert list(plan.planned[1].skipped) == reasons


def test_a_capability_is_no_matter_on_a_cpu(pick: Any) -> None:
    assert reasons(pick("minimum_compute_capability = (8, 0)")) == []
