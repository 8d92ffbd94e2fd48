"""The program: `run --plugin autogptq` without a GPU, ending in a table."""

import json

import pytest
from cli.program import Done, call
from several_ranks.scenarios import STARTS

from accel_bench.result import Result
from accel_bench.store.database import open_store

SCENARIO = {
    "name": "gptq",
    "model": {"id": "tiny-llama-cpu", "overrides": {"num_hidden_layers": 1}},
    "data": {"use": "synthetic", "sequence_length": 32},
    "train": {"micro_batch_size": 1},
    "resources": {"device": "cpu", "threads": 1},
    "measure": {"warmup": 1, "steps": 2, "rounds": 1},
}


@pytest.fixture(scope="module", params=STARTS)
def done(tmp_path_factory, request) -> tuple[Done, dict[str, Result]]:
    """One session of a scenario without adapters, dtypes or stacks."""
    folder = tmp_path_factory.mktemp("gptq")
    (folder / "scenario.yaml").write_text(json.dumps(SCENARIO))
    options = ("--plugin", "autogptq", "--set", "stacks.autogptq.autogptq.group_size=32")
    with request.param(folder / "site") as launching:
        words = ("run", "scenario.yaml", "--results", "results", *options, *launching)
        ended = call(*words, folder=folder)
    with open_store(folder / "results", write=False) as store:
        return ended, {found.experiment.stack.name: found for found in store.results()}


def test_it_ends_in_a_table_of_both_stacks(done):
    ended, found = done
    assert ended.code == 0, ended.out + ended.err
    assert set(found) == {"baseline", "autogptq"}
    assert all(result.status.completed for result in found.values()), found
    table = ended.out.splitlines()
    for stack in found:
        assert any(stack in line for line in table)


def test_the_adapter_and_the_dtype_that_it_needs_are_the_baseline_s_too(done):
    _, found = done
    for result in found.values():
        scenario = result.experiment.scenario
        assert (scenario.adapter.use, scenario.model.dtype) == ("lora", "bfloat16")
        assert result.ranks[0].effective.weights_fingerprint
    fingerprints = {r.ranks[0].effective.weights_fingerprint for r in found.values()}
    assert len(fingerprints) == 1


def test_the_evidence_is_stored_and_the_environment_is_that_of_the_baseline(done):
    _, found = done
    (rank,) = found["autogptq"].ranks
    assert rank.evidence["autogptq"]["kernel"] == "torch"
    assert rank.evidence["autogptq"]["group_size"] == 32
    assert rank.effective.environment_changes == {}
    assert rank.workload is not None
    assert [metric.name for metric in rank.metrics].count("quantize_seconds") == 1
