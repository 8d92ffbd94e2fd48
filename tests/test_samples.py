"""Every shipped scenario, stack and model loads, validates and plans; so do those of plugins."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from analysis_factory import make_result

from accel_bench.analysis.checks.comparability import comparability
from accel_bench.catalog.models import read_card
from accel_bench.documents.presets import PRESETS_GROUP, find_presets, preset_roots, presets_root
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.planning.resolve import resolve
from accel_bench.plugins.shipped import extras
from accel_bench.scenario.draft import Draft, read_stack
from accel_bench.scenario.find import find_drafts, read_draft

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]

KINDS = ("scenarios", "stacks", "models", "hardware", "prices")
"""Folders of samples."""

scenarios = pytest.mark.parametrize("name", sorted(find_presets("scenarios")))
stacks = pytest.mark.parametrize("name", sorted(find_presets("stacks")))
models = pytest.mark.parametrize("name", sorted(find_presets("models")))


def test_the_shipped_samples_and_those_of_installed_plugins_are_found() -> None:
    assert "quickstart" in find_presets("scenarios")
    assert "tiny-llama-cpu" in find_presets("models")
    assert {"activation-checkpointing", "torch-compile"} <= set(find_presets("stacks"))


def test_every_samples_entry_point_leads_to_a_folder() -> None:
    entries = metadata.entry_points(group=PRESETS_GROUP)
    assert len(preset_roots()) == 1 + len(entries)


@pytest.mark.box
@scenarios
def test_a_scenario_loads_and_plans(name: str) -> None:
    (draft,) = find_drafts([name])
    plan = make_plan(draft, read_machine(), PlanRequest(max_runs=10_000))
    assert plan.file.name == name
    needs_gpu = plan.file.resources.device == "cuda" and not read_machine().gpus
    # A minimal system has none.
    assert needs_gpu or plan.runnable or "no translation catalogues" in plan.nothing
    assert plan.file.description
    assert len({p.experiment.id for p in plan.planned}) == len(plan.planned)
    assert not list(refused(plan))


def refused(plan: Plan) -> Iterator[str]:
    """Yield what keeps a stack from being compared with the baseline of its sweep point."""
    bases = {
        p.experiment.point: p.experiment
        for p in plan.planned
        if p.experiment.stack.name == plan.baseline
    }
    for planned in plan.planned:
        runs = [make_result(one) for one in (bases[planned.experiment.point], planned.experiment)]
        yield from filter(None, [comparability(runs[:1], runs[1:]).refusal])


@scenarios
def test_a_scenario_says_its_question_in_its_first_line(name: str) -> None:
    first = find_presets("scenarios")[name].read_text(encoding="utf8").splitlines()[0]
    assert re.fullmatch(r"# [A-Z].*[.?]", first)


@stacks
def test_a_stack_loads_and_plans_on_the_quickstart(name: str) -> None:
    stack = read_stack(find_presets("stacks")[name])
    assert stack.description
    assert stack.set or stack.use
    quickstart = read_draft(find_presets("scenarios")["quickstart"])
    draft = Draft("test", {**quickstart.data, "stacks": {"baseline": [], "it": name}})
    plan = make_plan(draft, read_machine(), PlanRequest())
    baseline, it = (planned.experiment.id for planned in plan.planned)
    assert baseline != it


@models
def test_a_model_loads_and_can_be_named_by_a_scenario(name: str) -> None:
    card = read_card(name)
    assert card.description.endswith(".")
    quickstart = read_draft(find_presets("scenarios")["quickstart"])
    quickstart.set("model.id", name, "test")
    file = resolve(quickstart).scenario
    assert file.model.id == name


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_s_file_name_is_a_short_name(kind: str) -> None:
    names = list(find_presets(kind))
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name) for name in names)


def test_no_sample_names_a_path_of_some_machine() -> None:
    for path in presets_root().rglob("*.yaml"):
        assert not re.search(r"(^|[\s:'\"])(/|~|[A-Z]:\\)", path.read_text()), path


def test_every_file_in_the_folder_is_a_sample_or_a_list() -> None:
    found = {path for path in presets_root().rglob("*") if path.is_file()}
    known = {path for kind in KINDS for path in find_presets(kind).values()}
    assert {path.name for path in found - known} == {
        "defaults.yaml",
        "shipped.yaml",
        "commands.toml",
        "renamed.toml",
        *(f"{topic}.txt" for topic in ("environment", "exit-codes", "formats", "numbers")),
        "libraries.yaml",
    }


def test_every_extra_that_an_error_can_name_is_one_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    for plugin, brought in extras().items():
        (requirement,) = project["optional-dependencies"][brought.extra]
        # To a plugin in the box its extra brings a library.
        assert plugin in project["entry-points"]["accel_bench"] or plugin in plugins_of(requirement)


def test_every_plugin_of_a_distribution_that_an_extra_brings_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
    ours = {d["name"]: d for d in distributions()}
    for extra, requirements in project["optional-dependencies"].items():
        for requirement in requirements:
            if requirement in ours:
                assert {extras()[name].extra for name in plugins_of(requirement)} == {extra}


def plugins_of(distribution: str) -> set[str]:
    """Plugins that a distribution of `plugins/` brings."""
    (found,) = [d for d in distributions() if d["name"] == distribution]
    return set(found["entry-points"]["accel_bench"])


def distributions() -> list[dict[str, Any]]:
    """The `project` table of every distribution in `plugins/`."""
    files = sorted((ROOT / "plugins").glob("*/pyproject.toml"))
    return [tomllib.loads(file.read_text(encoding="utf8"))["project"] for file in files]


def test_samples_are_plain_yaml_for_other_readers_too() -> None:
    for path in presets_root().rglob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf8")), dict), path
