"""run_plugin does in this process what the product does in another, and leaves it as it was."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import accel_bench_testing
import pytest
import torch
from accel_bench_testing.tiny import tiny_work
from accel_bench_testing.trial_runs import losses
from cli.program import start
from fault_plugins.faults import plugin, source
from imported_modules import imported

from accel_bench import Result, Status, testing
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.testing import run_plugin, run_program, run_scenario


def run(folder: Path, text: str, **arguments: Any) -> Result:
    """Run a plugin with this source."""
    with plugin(folder, text):
        return run_plugin("it", **arguments)


def test_a_run_ends_in_the_result_that_the_product_stores(tmp_path: Path) -> None:
    result = run(tmp_path, source())
    assert result.status.completed, result.reasons
    (rank,) = result.ranks
    assert rank.evidence["it"]["modules"] > 20
    assert rank.window is not None
    assert len(rank.window.samples) == 5
    assert [one.name for one in result.plugins][:3] == ["it", "causal-lm", "huggingface"]
    assert result.exits == ("exit 0",)
    assert Result.model_validate_json(result.model_dump_json()) == result


def test_the_losses_are_those_of_the_program_in_its_own_process(tmp_path: Path) -> None:
    result = run_plugin("memory")
    scenario = result.experiment.scenario.model_dump(mode="json", exclude_none=True)
    path = tmp_path / "same.json.yaml"
    path.write_text(json.dumps({**scenario, "stacks": {"alone": []}}))
    done = start("run", str(path), "-q", "--results", str(tmp_path / "results"))
    assert done.code == 0, done.err
    (stored,) = (tmp_path / "results").rglob("result.json")
    product = Result.model_validate_json(stored.read_text())
    # A window that was disturbed is measured again: on a busy machine one may have more steps.
    assert losses(result)[:6] == pytest.approx(losses(product)[:6], rel=1e-6)


def test_options_reach_the_plugin_in_the_stack_and_in_a_slot() -> None:
    assert run_plugin("lora", r=3).ranks[0].evidence["lora"]["r"] == 3
    frozen = run_plugin("example", trainable_blocks=2).ranks[0].evidence["example"]
    assert (
        frozen["trainable_parameters"]
        > run_plugin("example").ranks[0].evidence["example"]["trainable_parameters"]
    )


def test_the_scenario_is_merged_over_the_tiny_one() -> None:
    changes = {"model": {"id": "gpt2"}, "data": {"sequence_length": 16}, "adapter": "lora"}
    scenario = run_plugin("memory", scenario=changes).experiment.scenario
    assert scenario.model.overrides["n_layer"] == 2
    assert (scenario.data.sequence_length, scenario.adapter.use) == (16, "lora")


def test_an_adapter_and_a_dtype_that_are_needed_are_added(tmp_path: Path) -> None:
    declared = "needs_adapter = True; dtypes = frozenset({'bfloat16'})"
    scenario = run(tmp_path, source(declared=declared)).experiment.scenario
    assert (scenario.adapter.use, scenario.model.dtype) == ("lora", "bfloat16")


def test_an_experiment_is_prepared_before_it_is_measured(tmp_path: Path) -> None:
    hook = (
        "pass\n\n    @hookimpl\n    def prepare_experiment(self, run):\n"
        "        run.rehearsal = True\n"
        "        run.cache('made', {}, lambda folder: (folder / 'file').write_text('ready'))"
    )
    acting = "self.found = (run.cache('made', {}, lambda f: None) / 'file').read_text()"
    text = source(acting=acting, closing=hook, evidence="{'found': self.found}")
    assert run(tmp_path, text).ranks[0].evidence["it"] == {"found": "ready"}


def test_a_preparation_that_fails_is_the_result(tmp_path: Path) -> None:
    hook = "pass\n\n    @hookimpl\n    def prepare_experiment(self, run):\n        1 / 0"
    result = run(tmp_path, source(closing=hook))
    assert result.status is Status.PLUGIN_ERROR
    assert result.phase == "prepare_experiment"


def test_a_run_that_fails_is_a_result_with_reasons_and_a_log(tmp_path: Path) -> None:
    result = run(tmp_path, source(acting="raise KeyError('here')"))
    assert result.status is Status.PLUGIN_ERROR
    assert "plugin 'it'" in result.reasons[0]
    assert "failed in accelerate_model: KeyError: 'here'" in result.reasons[0]
    assert "Traceback" in result.log_tail


def test_a_constraint_that_is_not_met_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    result = run(tmp_path, source(declared="devices = frozenset({'cuda'})"))
    assert result.status is Status.SKIPPED
    assert result.reasons == ("it: does not work with device cpu; it works with cuda",)


def test_what_the_program_refuses_is_an_error_here_too() -> None:
    with pytest.raises(PluginError, match="unknown key 'trainable_block'; did you mean"):
        run_plugin("example", trainable_block=1)
    with pytest.raises(ScenarioError, match="the kit decides itself on stacks"):
        run_plugin("example", scenario={"stacks": {}})
    with pytest.raises(PluginError, match="needs processes of its own"):
        run_plugin("local")


def test_ctrl_c_in_a_run_is_not_swallowed(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, source(acting="import signal; signal.raise_signal(signal.SIGINT)"))


def test_a_warning_of_a_library_is_no_failure(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="look out"):
        result = run(tmp_path, source(acting="import warnings; warnings.warn('look out')"))
    assert result.status.completed, result.reasons


def test_the_process_is_left_as_it_was(tmp_path: Path) -> None:
    before = state()
    acting = (
        "import torch, signal; os.environ['LEFT'] = '1'; os.environ.pop('HOME', None); "
        "os.chdir('/'); torch.set_default_dtype(torch.float64); torch.set_num_threads(1); "
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); torch.set_default_dtype(torch.bfloat16)"
    )
    run(tmp_path, source(acting=acting))
    assert state() == before
    assert not torch.distributed.is_initialized()


def test_a_run_that_failed_in_its_first_step_does_not_spoil_the_next(tmp_path: Path) -> None:
    cut = "run.model.model.layers[1].register_forward_pre_hook(lambda m, i: (i[0].detach(),))"
    assert run(tmp_path, source(acting=cut)).status is Status.INVALID
    result = run_plugin("memory")
    assert result.status.completed, result.reasons


def state() -> tuple[object, ...]:
    """What a run in this process must not change."""
    return (
        dict(os.environ),
        Path.cwd(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
    )


def test_two_runs_do_not_share_random_numbers() -> None:
    random.seed(1)
    first = losses(run_plugin("memory"))
    torch.rand(7)
    assert losses(run_plugin("memory"))[:6] == first[:6]


def test_what_authors_import_is_what_the_kit_promises() -> None:
    assert testing.__all__ == accel_bench_testing.__all__


def test_importing_the_kit_imports_neither_torch_nor_pytest() -> None:
    assert not imported("import accel_bench.testing", {"torch", "pytest"})


def test_the_tiny_scenario_takes_seconds_not_minutes() -> None:
    from accel_bench.builtin.memory import Memory

    work = tiny_work(Memory, (), {}, "cpu")
    assert work["measure"]["steps"] * work["data"]["sequence_length"] <= 512


TWO_STACKS = """\
model: {use: null}
data: {use: null, sequence_length: 16}
optimizer: {use: null}
engine: {use: null}
stacks: {baseline: [], nowhere: {set: {resources.nodes: 2}}}
measure: {warmup: 1, steps: 2, rounds: 3}
"""


def written(folder: Path, more: str = "") -> Path:
    """Return the file of a scenario without torch."""
    path = folder / "two.yaml"
    path.write_text(TWO_STACKS + more, encoding="utf8")
    return path


def test_a_scenario_is_run_once_and_its_results_are_found_by_stack(tmp_path: Path) -> None:
    found = run_scenario(written(tmp_path), settings={"measure.steps": 4})
    assert list(found) == ["baseline", "nowhere"]
    window = found["baseline"].ranks[0].window
    assert window is not None
    assert len(window.samples) == 4
    assert found["nowhere"].status is Status.SKIPPED


def test_stacks_of_a_scenario_are_added_and_chosen_as_the_program_does(tmp_path: Path) -> None:
    found = run_scenario(written(tmp_path), plugins=["memory"], only=["memory"])
    assert list(found) == ["baseline", "memory"]


def test_a_scenario_that_one_process_cannot_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="starts no ranks"):
        run_scenario(written(tmp_path), settings={"resources.devices": 2})
    with pytest.raises(ScenarioError, match="one point of its sweep"):
        run_scenario(written(tmp_path, "sweep: {train.seed: [1, 2]}\n"))
    with pytest.raises(ScenarioError, match="did you mean 'quickstart'"):
        run_scenario("quickstrat")


def test_the_program_is_run_in_a_folder_with_further_variables(tmp_path: Path) -> None:
    done = run_program(
        *("results", "list"), folder=tmp_path, environment={"ACCEL_BENCH_RESULTS": "elsewhere"}
    )
    assert done.returncode == 2
    assert "elsewhere" in done.stderr
