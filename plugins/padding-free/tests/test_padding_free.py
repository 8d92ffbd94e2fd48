"""padding-free: contract, evidence, and reasons for refusals."""

import json

import pytest
import torch
from accel_bench_padding_free import PaddingFree
from pydantic import ValidationError
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from accel_bench.analysis.checks.audit import audit
from accel_bench.documents.load import load_file
from accel_bench.documents.presets import find_presets
from accel_bench.scenario.models import StackEntry
from accel_bench.testing import check_plugin, make_machine, run_plugin

# What the libraries say of themselves is not ours to mend.
pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]

UNEQUAL = {
    "data": {
        "sequence_length": 64,
        "samples": 32,
        "lengths": {"median": 20, "minimum": 4},
        "padding": "longest",
    },
    "train": {"micro_batch_size": 4},
}
"""A tiny scenario with padding."""


COUNTED = {"global_batch", "sequence_length", "token_counts"}
"""Invariants of the self-audit that do not depend on time."""


def make_plugin(**options):
    return PaddingFree(PaddingFree.Options(**options), "padding-free")


def ended_well(result):
    assert result.status.completed, result.reasons
    assert not {broken.invariant for broken in audit(result)} & COUNTED
    return result.ranks[0]


@pytest.mark.parametrize(
    "archs", [("OPTForCausalLM",), pytest.param(("GPT2LMHeadModel",), marks=pytest.mark.release)]
)
def test_it_keeps_the_contract(archs):
    report = check_plugin("padding-free", scenario=UNEQUAL, archs=archs)
    said = {(clause.name, clause.sentence) for clause in report.proven}
    assert {("dtypes", "bfloat16"), ("architectures", *archs)} <= said


def test_evidence_shows_what_was_left_out_and_what_kept_sequences_apart():
    rank = ended_well(run_plugin("padding-free", scenario=UNEQUAL))
    shown, window = rank.evidence["padding-free"], rank.window
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["attention"], shown["sampler"]) == ("varlen", "same")
    assert shown["attention_calls"]["one by one"] >= 2 * shown["rows"]
    assert shown["isolation_difference"] < 1e-5
    assert 0.1 < shown["padding_avoided"] < 0.8
    assert shown["constant_length"] is False
    assert shown["sequences"] == 4 * shown["rows"]
    for sample in (*window.warmup, *window.samples):
        assert sample.processed_tokens == sample.real_tokens
        assert sample.supervised_tokens == sample.real_tokens - 4
        assert sample.real_pairs == sample.processed_pairs > sample.real_tokens**2 / 4
    assert rank.effective.padding_free is True
    assert rank.effective.attention == "sdpa"


def test_attention_is_counted_by_each_sequence_s_own_length_and_a_mask_costs_the_whole_row():
    def steps(**options):
        window = ended_well(run_plugin("padding-free", scenario=UNEQUAL, **options)).window
        return {s.step: s for s in (*window.warmup, *window.discarded, *window.samples)}

    separate, masked = steps(), steps(attention="mask")
    for number in range(5):
        one, other = separate[number], masked[number]
        assert one.real_pairs == one.processed_pairs == other.real_pairs
        assert other.processed_pairs == other.real_tokens**2 > one.processed_pairs


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": "hf-trainer"},
        {"adapter": {"use": "lora", "r": 2, "target_modules": ["q_proj", "v_proj"]}},
        {"train": {"micro_batch_size": 2, "gradient_accumulation": 2}},
        {"train": {"micro_batch_size": 4, "gradient_checkpointing": True}},
        pytest.param(
            {"train": {"micro_batch_size": 4, "precision": "bf16-autocast"}},
            marks=pytest.mark.release,
        ),
    ],
    ids=["hf-trainer", "lora", "accumulation", "checkpointing", "autocast"],
)
@pytest.mark.parametrize(
    "options",
    [{}, pytest.param({"sampler": "multipack", "attention": "mask"}, marks=pytest.mark.release)],
    ids=["", "multipack-mask"],
)
def test_it_runs_with_what_trains_beside_it(changes, options):
    rank = ended_well(run_plugin("padding-free", scenario={**UNEQUAL, **changes}, **options))
    assert rank.evidence["padding-free"]["padding_avoided"] > 0
    assert "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping


def test_samples_of_one_length_are_trained_and_said_to_gain_nothing():
    rank = ended_well(run_plugin("padding-free"))
    shown = rank.evidence["padding-free"]
    assert (shown["padding_avoided"], shown["constant_length"]) == (0.0, True)


@pytest.mark.parametrize(
    "options, model, reason",
    [
        ({"attention": "varlen"}, {"attention": "eager"}, "needs model.attention sdpa or flash"),
        ({"attention": "mask"}, {"attention": "flash_attention_2"}, "mask needs model.attention"),
        ({}, {"id": "opt-125m", "attention": "eager"}, "without looking at positions"),
        ({"attention": "mask"}, {"id": "opt-125m"}, "without looking at positions"),
    ],
)
def test_what_would_be_wrong_is_refused_with_the_way_out(make_run, options, model, reason):
    experiment = make_run().experiment
    scenario = experiment.scenario
    changed = scenario.model_copy(update={"model": scenario.model.model_copy(update=model)})
    experiment = experiment.model_copy(update={"scenario": changed})
    machine = make_machine()
    (said,) = make_plugin(**options).check_scenario(experiment, machine)
    assert reason in said
    assert list(make_plugin().check_scenario(make_run().experiment, machine)) == []


@pytest.mark.parametrize("options", [{"sampler": "random"}, {"attention": "flash"}, {"pad": 8}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ValidationError):
        PaddingFree.Options(**options)


def test_its_stacks_are_found_and_valid():
    found = find_presets("stacks")
    for name, sampler in (("padding-free", "same"), ("padding-free-multipack", "multipack")):
        entry = StackEntry.model_validate_json(json.dumps(load_file(found[name]).data))
        assert [(use.use, use.options) for use in entry.use] == [
            ("padding-free", {"sampler": sampler})
        ]
        assert PaddingFree.Options(**entry.use[0].options).sampler == sampler


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's kernel needs a CUDA device")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_on_a_gpu_torch_s_kernel_gives_the_loss_of_padded_batches(dtype):
    report = check_plugin(
        "padding-free",
        options={"attention": "varlen"},
        scenario={**UNEQUAL, "model": {"dtype": dtype}},
        archs=["LlamaForCausalLM", "MistralForCausalLM", "GPTBigCodeForCausalLM"],
        dtypes=[dtype],
        device="cuda",
    )
    assert "loss of the baseline" in {clause.name for clause in report.proven}


def test_shared_rows_behind_a_mask_run_with_the_other_engine():
    options = {"sampler": "multipack", "attention": "mask"}
    work = {**UNEQUAL, "engine": "hf-trainer"}
    rank = ended_well(run_plugin("padding-free", scenario=work, **options))
    assert rank.evidence["padding-free"]["padding_avoided"] > 0
