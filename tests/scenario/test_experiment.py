"""Identity: what makes two experiments the same, and what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from cli.program import write_nulls

from accel_bench.documents.canonical import digest
from accel_bench.machine.info import Machine, read_machine
from accel_bench.planning.plan import Plan, PlanRequest, make_plan, scenario_of
from accel_bench.scenario.find import read_draft

MACHINE = read_machine()


def plan(tmp_path: Path, machine: Machine = MACHINE, **changes: str) -> Plan:
    """The plan of the scenario without torch, with these lines changed."""
    return make_plan(read_draft(write_nulls(tmp_path, **changes)), machine, PlanRequest())


def identity(tmp_path: Path, machine: Machine = MACHINE, **changes: str) -> str:
    """Id of the scenario's last stack."""
    return plan(tmp_path, machine, **changes).planned[-1].experiment.id


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "another"},
        {"description": "another question"},
        {"slow": "true"},
        {"stacks": "{baseline: [], renamed: []}"},
        {"stacks": "{only: []}"},
        {"baseline": "other"},
        {"measure": "{warmup: 1, steps: 2, rounds: 9}"},
        {"measure": "{warmup: 1, steps: 2, rounds: 1, timeout_seconds: 5}"},
        {"launcher": "local"},
        {"sweep": "{train.seed: [0]}"},
        {"train": "{seed: 0}"},
        {"train": "{micro_batch_size: 1, global_batch_size: 1}"},
        {"stacks": "{baseline: [], other: {set: {train.seed: 0}}}"},
    ],
)
def test_names_repeats_timeouts_and_defaults_do_not_change_the_id(
    changes: dict[str, str], tmp_path: Path
) -> None:
    assert identity(tmp_path, **changes) == identity(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"train": "{seed: 1}"},
        {"train": "{learning_rate: 2e-4}"},
        {"train": "{micro_batch_size: 2}"},
        {"data": "{use: null, sequence_length: 17}"},
        {"data": "{use: null, sequence_length: 16, seed: 1}"},
        {"model": "{use: null, id: gpt2}"},
        {"engine": "{use: null, step_seconds: 0.1}"},
        {"metrics": "[]"},
        {"environment": "{OMP_NUM_THREADS: '1'}"},
        {"resources": "{threads: 1}"},
        {"resources": "{host_memory_gib: 1}"},
        {"resources": "{backend: gloo}"},
        {"measure": "{warmup: 2, steps: 2, rounds: 1}"},
        {"measure": "{warmup: 1, steps: 3, rounds: 1}"},
        {"measure": "{warmup: 1, steps: 2, rounds: 1, sync: each}"},
        {"measure": "{warmup: 1, steps: 2, rounds: 1, seed: 1}"},
        {"stacks": "{baseline: [], other: {set: {train.seed: 1}}}"},
        {"stacks": "{baseline: [], other: [example]}"},
    ],
)
def test_settings_options_and_data_change_the_id(changes: dict[str, str], tmp_path: Path) -> None:
    assert identity(tmp_path, **changes) != identity(tmp_path)


def test_an_option_of_a_stack_s_plugin_changes_the_id(tmp_path: Path) -> None:
    one, two = (
        identity(tmp_path, stacks=f"{{a: [{{use: torch-compile, dynamic: {value}}}]}}")
        for value in ("true", "false")
    )
    assert one != two


def test_the_order_of_plugins_changes_the_id(tmp_path: Path) -> None:
    one, two = (
        identity(tmp_path, stacks=f"{{a: [{order}]}}")
        for order in ("example, torch-compile", "torch-compile, example")
    )
    assert one != two


@pytest.mark.parametrize(
    "change",
    [
        {"python": "3.99.0"},
        {"processor": "another"},
        {"cores": 4096},
        {"versions": {**MACHINE.versions, "torch": "99.0"}},
        {"versions": {**MACHINE.versions, "transformers": "99.0"}},
    ],
)
def test_versions_and_devices_change_the_id(change: dict[str, Any], tmp_path: Path) -> None:
    machine = MACHINE.model_copy(update=change)
    assert identity(tmp_path, machine) != identity(tmp_path)


@pytest.mark.parametrize(
    "change", [{"host": "another"}, {"load_average": 99.0}, {"memory_bytes": 1}, {"system": "x"}]
)
def test_the_host_and_its_load_do_not_change_the_id(change: dict[str, Any], tmp_path: Path) -> None:
    assert identity(tmp_path, MACHINE.model_copy(update=change)) == identity(tmp_path)


def test_the_content_of_the_data_changes_the_id_and_its_place_in_the_folder_tree_does_not(
    tmp_path: Path,
) -> None:
    ids = []
    for folder, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / folder).mkdir()
        data = tmp_path / folder / "text.txt"
        data.write_text(text * 100)
        found = plan(tmp_path, data=f"{{use: text, source: path, path: {data}}}")
        ids.append(found.planned[-1].experiment.identity["environment"]["fingerprints"])
    assert ids[0] == ids[1] != ids[2]


def test_the_id_is_the_digest_of_what_it_is_made_of(tmp_path: Path) -> None:
    experiment = plan(tmp_path).planned[0].experiment
    assert experiment.id == digest(experiment.identity)
    assert len(experiment.id) == 12
    # Ids are those from before there was any of these.
    for key in ("host_memory_gib", "backend", "devices_by_node"):
        assert f"'{key}'" not in str(experiment.identity)


def test_stacks_of_one_sweep_point_share_it(tmp_path: Path) -> None:
    found = plan(tmp_path, sweep="{train.seed: [1, 2]}").planned
    names = [planned.experiment.point for planned in found]
    assert names[0] == names[1] != names[2] == names[3]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"sweep": "{train.seed: [5]}"},
        {"stacks": "{a: {set: {train.seed: 4, model.dtype: float16}, use: [torch-compile]}}"},
        {"stacks": "{a: [{use: torch-compile, dynamic: null}]}"},
        {"train": "{global_batch_size: 6, micro_batch_size: 2, max_grad_norm: 1.0}"},
        {"environment": "{OMP_NUM_THREADS: '2'}", "metrics": "[]"},
        {"model": "{use: null, overrides: {num_hidden_layers: 2, x: null}}"},
    ],
)
def test_the_scenario_that_a_run_writes_down_gives_the_same_id(
    changes: dict[str, str], tmp_path: Path
) -> None:
    planned = plan(tmp_path, **changes).planned[-1]
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(scenario_of(planned), sort_keys=False))
    (again,) = make_plan(read_draft(path), MACHINE, PlanRequest()).planned
    assert again.experiment.identity == planned.experiment.identity
    assert again.experiment.id == planned.experiment.id
