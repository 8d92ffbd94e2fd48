"""What makes two stored experiments incomparable, and what their stacks have declared."""

from __future__ import annotations

from typing import Any

import pytest
from analysis_factory import make_rank, make_result
from store.store_factory import MACHINE

from accel_bench.analysis.checks.comparability import comparability
from accel_bench.documents.canonical import digest
from accel_bench.effective import Compilation, EffectiveConfiguration, GradientFlow
from accel_bench.machine.scheduling import Scheduling
from accel_bench.machine.state import CPUState, GPUState, MachineState
from accel_bench.result import Result
from accel_bench.scenario.experiment import Experiment, identity_of
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.scenario.uses import Use

ENVIRONMENT = {
    "python": "3.11.7",
    "versions": {"torch": "2.13.0", "transformers": "5.17.0"},
    "plugins": [{"name": "torch", "distribution": "accel-bench", "version": "0.1.0"}],
    "driver": "570.1",
    "devices": ["NVIDIA A100"],
    "fingerprints": {"text": "abc"},
    "variables": {"OMP_NUM_THREADS": "4"},
}
FLOW = GradientFlow(trained_tensors=1, tensors_with_gradient=1, gradient_norms={"a": 1.0})
EFFECTIVE = EffectiveConfiguration(
    threads=4,
    world_size=1,
    attention="sdpa",
    gradient_flow=FLOW,
    scheduling=Scheduling(nice=0, cpus=4),
)


def run(
    *uses: str,
    settings: dict[str, Any] | None = None,
    work: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    effective: dict[str, Any] | None = None,
    machine: dict[str, Any] | None = None,
    state: MachineState | None = None,
) -> list[Result]:
    """One run of an experiment, as a list."""
    scenario = Scenario.model_validate(work or {})
    stack = Stack(name="stack", uses=tuple(Use(use=name) for name in uses), settings=settings or {})
    identity = identity_of(scenario, stack, {**ENVIRONMENT, **(environment or {})})
    experiment = Experiment(id=digest(identity), scenario=scenario, stack=stack, identity=identity)
    device = {"type": "cuda", "name": "NVIDIA A100", "uuid": "GPU-1"}
    rank = make_rank(device=device).model_copy(
        update={"effective": EFFECTIVE.model_copy(update=effective)}
    )
    changes = {"machine": MACHINE.model_copy(update=machine), "state_before": state}
    return [make_result(experiment, ranks=[rank]).model_copy(update=changes)]


def state(cap: float = 400.0, governor: str = "performance") -> MachineState:
    """A machine with one device."""
    cpu = CPUState(
        own_seconds=0.0, memory_available_bytes=1, swap_used_bytes=0, governors=(governor,)
    )
    gpu = GPUState(uuid="GPU-1", power_cap_watts=cap)
    return MachineState(monotonic_seconds=0.0, cpu=cpu, gpus=(gpu,))


def keys(a: list[Result], b: list[Result]) -> tuple[list[str], list[str]]:
    """What is declared, and what else differs."""
    found = comparability(a, b)
    assert found.comparable is (found.differing == ())
    return [d.key for d in found.declared], [d.key for d in found.differing]


def test_runs_of_one_experiment_are_comparable() -> None:
    assert keys(run(), run()) == ([], [])


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"environment": {"driver": "580.2"}}, "environment.driver"),
        ({"environment": {"devices": ["NVIDIA H100"]}}, "environment.devices"),
        ({"environment": {"versions": {"torch": "2.12.0", "transformers": "5.17.0"}}},
         "environment.versions.torch"),
        ({"environment": {"variables": {"OMP_NUM_THREADS": "8"}}},
         "environment.variables.OMP_NUM_THREADS"),
        ({"environment": {"fingerprints": {"text": "other"}}}, "environment.fingerprints.text"),
        ({"environment": {"plugins": [{**ENVIRONMENT["plugins"][0], "version": "0.2.0"}]}},  # type: ignore[index]
         "environment.plugins.torch"),
        ({"work": {"model": {"dtype": "bfloat16"}}}, "work.model.dtype"),
        ({"work": {"data": {"sequence_length": 64}}}, "work.data.sequence_length"),
        ({"work": {"measure": {"sync": "each"}}}, "measure.sync"),
        ({"machine": {"system": "Linux 7"}}, "machine.system"),
        ({"effective": {"threads": 2}}, "effective.threads"),
        ({"effective": {"scheduling": Scheduling(nice=-20, cpus=4)}}, "effective.scheduling.nice"),
        ({"effective": {"scheduling": Scheduling(nice=0, cpus=1)}}, "effective.scheduling.cpus"),
        ({"effective": {"attention": "eager"}}, "effective.attention"),
    ],
)  # fmt: skip
def test_whatever_matters_and_differs_is_named(changes: dict[str, Any], key: str) -> None:
    found = comparability(run(), run(**changes))
    assert [difference.key for difference in found.differing] == [key]
    assert found.differing[0].a != found.differing[0].b


def test_the_batch_differs_in_all_that_follows_from_it() -> None:
    _, differing = keys(run(), run(work={"train": {"micro_batch_size": 4}}))
    assert differing == ["work.train.micro_batch_size", "work.train.global_batch_size"]


def test_a_setting_that_a_stack_declares_is_its_difference_with_what_follows_from_it() -> None:
    bigger = run(settings={"train.micro_batch_size": 4}, work={"train": {"micro_batch_size": 4}})
    declared, differing = keys(run(), bigger)
    assert declared == ["work.train.micro_batch_size", "work.train.global_batch_size"]
    assert differing == []


def test_a_declared_setting_excuses_no_other() -> None:
    work = {"model": {"dtype": "bfloat16"}, "data": {"sequence_length": 64}}
    other = run(settings={"model.dtype": "bfloat16"}, work=work)
    assert keys(run(), other) == (["work.model.dtype"], ["work.data.sequence_length"])


def test_a_setting_that_holds_the_same_word_is_another_one() -> None:
    other = run(settings={"train.seed": 1}, work={"train": {"seed": 1}, "data": {"seed": 1}})
    assert keys(run(), other) == (["work.train.seed"], ["work.data.seed"])


def test_uses_are_declared_with_what_their_plugins_bring() -> None:
    plugin = {"name": "fused", "distribution": "accel-bench-fused", "version": "1"}
    environment = {
        "plugins": [*ENVIRONMENT["plugins"], plugin],  # type: ignore[misc]
        "fingerprints": {"text": "abc", "fused": "x"},
    }
    other = run("fused", environment=environment, effective={"attention": "eager"})
    found = comparability(run(), other)
    (difference,) = found.declared
    assert (difference.key, difference.a, difference.b) == ("uses", [], [{"use": "fused"}])
    assert found.comparable


def test_ranks_that_compute_one_batch_together_may_take_another_part_of_the_same_one() -> None:
    two = {"devices": 2}
    apart = {"resources": two, "train": {"global_batch_size": 8}}
    together = {**apart, "resources": {**two, "data_parallel": 1}}
    found = comparability(run(work=apart), run("mesh", work=together))
    assert found.refusal == ""
    assert {one.key for one in found.declared} >= {"work.train.micro_batch_size"}
    other = {**together, "train": {"global_batch_size": 4}}
    found = comparability(run(work=apart), run("mesh", work=other))
    assert [one.key for one in found.differing] == ["work.train.global_batch_size"]


def test_what_a_plugin_does_to_threads_or_processes_is_not_declared() -> None:
    assert keys(run(), run("fused", effective={"threads": 1})) == (["uses"], ["effective.threads"])


def test_a_number_that_was_measured_is_no_condition() -> None:
    other = FLOW.model_copy(update={"gradient_norms": {"a": 1.5}})
    assert keys(run(), run(effective={"gradient_flow": other})) == ([], [])


def test_the_policy_of_clocks_and_power_must_agree_where_it_is_stored() -> None:
    capped = run(state=state(cap=250.0))
    assert keys(run(state=state()), capped) == ([], ["state.gpu0.power_cap_watts"])
    saving = run(state=state(governor="powersave"))
    assert keys(run(state=state()), saving) == ([], ["state.governors"])
    assert keys(run(), capped) == ([], [])


def test_values_that_changed_from_run_to_run_are_all_named() -> None:
    both = [*run(effective={"threads": 2}), *run(effective={"threads": 4})]
    (found,) = comparability(both, run()).differing
    assert (found.key, found.a, found.b) == ("effective.threads", [2, 4], 4)


def test_a_fingerprint_of_what_a_stack_uses_with_other_options_is_declared() -> None:
    environment = {"fingerprints": {"text": "abc", "fused": "x"}}
    other = {"fingerprints": {"text": "abc", "fused": "y"}}
    one = run("fused", environment=environment)
    changed = run("fused", environment=other)
    assert keys(one, changed) == ([], ["environment.fingerprints.fused"])
    stack = changed[0].experiment.stack.model_copy(
        update={"uses": (Use(use="fused", options={"bits": 4}),)}
    )
    experiment = changed[0].experiment.model_copy(update={"stack": stack})
    found = keys(one, [changed[0].model_copy(update={"experiment": experiment})])
    assert found == (["uses", "environment.fingerprints.fused"], [])


def test_a_rank_that_is_not_the_first_is_looked_at_too() -> None:
    (one,) = run()
    first, second = one.ranks[0], one.ranks[0].model_copy(update={"rank": 1})
    before = one.model_copy(update={"ranks": (first, second)})
    raised = second.effective.model_copy(update={"scheduling": Scheduling(nice=-20, cpus=4)})
    second = second.model_copy(update={"effective": raised})
    after = one.model_copy(update={"ranks": (first, second)})
    assert keys([before], [before]) == ([], [])
    assert keys([before], [after]) == ([], ["effective.scheduling.nice"])


def test_seconds_and_counts_that_are_measured_are_no_condition() -> None:
    changes = {"synchronizations_per_step": 2, "compilation": Compilation(compile_seconds=1.0)}
    assert keys(run(), run(effective=changes)) == ([], [])


def test_what_a_row_of_an_earlier_version_has_not_stored_need_not_agree() -> None:
    seen = {"matmul_dtypes": {"float32": 29}, "dropout": {"0.1": 24}, "random_operations": "noise"}
    assert keys(run(), run(effective=seen)) == ([], [])
    before = run(effective={"scheduling": None})
    assert keys(before, run()) == keys(run(), before) == ([], [])
