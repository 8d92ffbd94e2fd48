"""check_plugin catches what breaks the contract, names it, and lets pass what keeps it."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path

import pytest
import torch
from fault_plugins.faults import source
from torch.optim import optimizer
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from accel_bench.testing import check_plugin

from .checking import NULL, check, violations

pytestmark = pytest.mark.long

real_import = pytest.mark.real_import


@real_import
def test_a_plugin_that_keeps_the_contract_passes_on_all_it_declares(tmp_path: Path) -> None:
    report = check(tmp_path, source(declared="deterministic = True"), archs=None, dtypes=None)
    said = [(clause.name, clause.sentence) for clause in report.proven]
    assert ("dtypes", "bfloat16") in said
    assert {("architectures", "GPT2LMHeadModel"), ("architectures", "LlamaForCausalLM")} <= {*said}
    (same,) = [clause.sentence for clause in report.proven if clause.name.startswith("same seed")]
    assert re.fullmatch(r"\d+ losses are equal, bit for bit", same)
    assert report.unproven == ()


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=pytest.mark.release)
            for name in ("null", "memory", "lora", "sgd")
        ),
        pytest.param("hf-trainer", marks=pytest.mark.box),
    ],
)
def test_plugins_in_the_box_pass_in_their_slots(name: str) -> None:
    report = check_plugin(name, archs=(), dtypes=())
    assert "runs" in {clause.name for clause in report.proven}


@real_import
def test_what_is_heavy_on_top_and_a_variable_set_by_the_import_are_named(tmp_path: Path) -> None:
    top = "import os; os.environ['OF_THE_IMPORT'] = '1'; import numpy"
    try:
        found = violations(tmp_path, source(top=top), scenario=NULL)
    finally:
        os.environ.pop("OF_THE_IMPORT", None)
    (heavy,) = [text for text in found if "at module level" in text]
    assert re.search(
        r"imports .*numpy at module level; import it in the bodies of the hooks", heavy
    )
    (setting,) = [text for text in found if text != heavy]
    assert "sets the environment variables OF_THE_IMPORT; set them in prepare_process" in setting


HURRIED = """\
import signal, sys
if "pytest" not in sys.modules and signal.getitimer(signal.ITIMER_REAL)[0] < 30:
    raise RuntimeError("less than half a minute to import")
"""
"""An import that takes long on a busy machine, as that of torch does."""


def test_a_variable_that_is_left_is_named(tmp_path: Path) -> None:
    (found,) = violations(tmp_path, source(acting="os.environ['LEFT'] = 'x'"), scenario=NULL)
    assert "the environment variable LEFT is 'x', and was not set before" in found
    assert "LEFT" not in os.environ


def test_a_setting_of_torch_that_is_left_is_named(tmp_path: Path) -> None:
    acting = "import torch; torch.use_deterministic_algorithms(True)"
    (found,) = violations(tmp_path, source(acting=acting), scenario=NULL)
    assert "torch.use_deterministic_algorithms is True, and was False before" in found
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_class_that_stays_patched_is_named_with_who_did_it(tmp_path: Path) -> None:
    before = LlamaRMSNorm.forward
    acting = (
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm; "
        "original = LlamaRMSNorm.forward; "
        "LlamaRMSNorm.forward = lambda self, x: original(self, x)"
    )
    try:
        (found,) = violations(tmp_path, source(acting=acting))
    finally:
        LlamaRMSNorm.forward = before
    assert "modeling_llama.LlamaRMSNorm.forward was replaced by" in found
    assert "accel_bench_test_a_class" in found


def test_a_class_that_is_patched_and_put_back_passes_and_a_hook_may_stay(tmp_path: Path) -> None:
    acting = (
        "run.model.register_forward_hook(lambda *arguments: None); "
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm as C; "
        "self.original = C.forward; C.forward = lambda s, x: self.original(s, x)"
    )
    closing = (
        "from transformers.models.llama.modeling_llama import LlamaRMSNorm as C; "
        "C.forward = self.original or C.forward"
    )
    text = source(making="self.original = None", acting=acting, closing=closing)
    assert check(tmp_path, text).ran


def test_what_is_set_when_the_plugin_is_made_must_be_undone(tmp_path: Path) -> None:
    making = (
        "import sys; "
        "'torch' in sys.modules and sys.modules['torch'].use_deterministic_algorithms(True)"
    )
    (found,) = violations(tmp_path, source(making=making), scenario=NULL)
    assert "torch.use_deterministic_algorithms is True, and was False before" in found
    assert not torch.are_deterministic_algorithms_enabled()


@real_import
def test_planning_that_sets_a_variable_is_named_and_a_heavy_import_has_time(tmp_path: Path) -> None:
    closing = "os.environ.pop('MADE', None)"
    text = source(top=HURRIED, making="os.environ['MADE'] = '1'", closing=closing)
    (found,) = violations(tmp_path, text, scenario=NULL)
    # Planning itself undoes it, and the run says so.
    assert "changed MADE" in found
    assert "let it do so in prepare_process" in found


@real_import
def test_what_the_parent_s_hooks_import_is_named(tmp_path: Path) -> None:
    more = (
        "@hookimpl\n    def check_scenario(self, experiment):\n        import numpy\n"
        "    @hookimpl\n    def observe_ranks(self, job):\n        import tokenizers\n"
    )
    (found,) = violations(tmp_path, source(more=more), scenario=NULL)
    assert re.search("check_scenario imports .*numpy, tokenizers in the process that plans", found)


@real_import
def test_what_the_parent_s_hooks_print_is_named(tmp_path: Path) -> None:
    more = "@hookimpl\n    def check_scenario(self, experiment):\n        print('planned')"
    imported, planned = violations(
        tmp_path, source(top="print('imported')", more=more), scenario=NULL
    )
    assert "prints 'imported'" in imported
    assert "check_scenario prints 'planned'" in planned


def test_what_a_run_prints_and_writes_where_it_has_nothing_to_write_is_named(
    tmp_path: Path,
) -> None:
    acting = (
        "print('hello'); (run.folder.parent / 'mine').touch(); "
        "(run.folder / 'job.json').write_text('{}'); (run.folder / 'own.txt').touch()"
    )
    outside, of_core, printed = violations(tmp_path, source(acting=acting), scenario=NULL)
    assert "/mine, which is outside of run.folder and run.cache" in outside
    assert "has written job.json of run.folder, which is core's" in of_core
    assert re.search(r"output: accel_bench_\S+ prints 'hello'; log by run.logger", printed)


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ("conflicts = frozenset({'x'}); after = ('x',)", "conflicts and after both stand for 'x'"),
        ("after = before = ('x',)", "after and before both stand for 'x'"),
        (
            "needs_adapter = True; conflicts = frozenset({'lora'})",
            "conflicts and needs_adapter both stand for 'lora'",
        ),
    ],
)
def test_declarations_that_contradict_each_other_are_named(
    tmp_path: Path, declared: str, said: str
) -> None:
    (found,) = violations(tmp_path, source(declared=declared), scenario=NULL)
    assert found.startswith("declarations: ") and said in found


def test_what_is_left_by_a_run_that_fails_early_is_named(tmp_path: Path) -> None:
    early = "@hookimpl\n    def prepare_process(self, run):\n        os.environ['EARLY'] = '1'"
    closing = "self.late; os.environ.pop('EARLY')"
    text = source(acting="self.late = 1", closing=closing, more=early)
    left, raised = violations(tmp_path, text, scenario=NULL)
    assert "after a run that failed once processes were prepared" in left
    assert "the environment variable EARLY is '1'" in left
    assert "close_run raised AttributeError: 'It' object has no attribute 'late'" in raised


def test_other_settings_that_are_left_are_named_and_put_back(tmp_path: Path) -> None:
    acting = "import gc, torch; gc.disable(); torch.backends.cudnn.allow_tf32 = False"
    for run in ("first", "second"):  # Not put back, the second would find them as they were.
        folder = tmp_path / f"{tmp_path.name}_{run}"
        folder.mkdir()
        found = violations(folder, source(acting=acting), scenario=NULL)
        for name in ("gc.enable", "torch.backends.cudnn.allow_tf32"):
            (_,) = [text for text in found if f"{name} is False, and was True before" in text]
        assert len(found) == 2


def test_functions_that_stay_replaced_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = [("time", "perf_counter"), ("torch.cuda", "synchronize")]
    acting = "import time, torch.cuda"
    for module, name in functions:
        owner = importlib.import_module(module)
        monkeypatch.setattr(owner, name, getattr(owner, name))
        acting += f"; {module}.{name} = (lambda was: lambda *a: was(*a))({module}.{name})"
    found = violations(tmp_path, source(acting=acting), scenario=NULL)
    for module, name in functions:
        (_,) = [text for text in found if f"{module}.{name} was replaced by" in text]
    assert len(found) == 2


def test_a_hook_of_all_optimizers_that_is_left_is_named_and_removed(tmp_path: Path) -> None:
    acting = (
        "from torch.optim.optimizer import register_optimizer_step_post_hook as register; "
        "register(lambda *arguments: None)"
    )
    (found,) = violations(tmp_path, source(acting=acting))
    assert "It.accelerate_model.<locals>.<lambda> in torch's _global_optimizer_post_hooks" in found
    assert not optimizer._global_optimizer_post_hooks


@pytest.mark.parametrize(
    "evidence",
    # A report of nothing is printed below.
    [*(pytest.param(one, marks=pytest.mark.release) for one in ("None", "{}")), "{'replaced': 0}"],
)
def test_missing_evidence_is_named(tmp_path: Path, evidence: str) -> None:
    (found,) = violations(tmp_path, source(evidence=evidence), scenario=NULL)
    assert found.startswith("evidence: ")
    assert "report_evidence" in found


def test_evidence_that_is_no_json_ends_the_run(tmp_path: Path) -> None:
    (found,) = violations(tmp_path, source(evidence="{'x': object()}"), scenario=NULL)
    assert "plugin_error in report_evidence" in found
    assert "returned what is not JSON" in found


def test_a_claim_to_be_deterministic_is_tried(tmp_path: Path) -> None:
    acting = (
        "import torch; g = torch.Generator(); g.seed(); "
        "w = run.model.lm_head.weight; w.data += 1e-4 * torch.randn(w.shape, generator=g)"
    )
    declared = "deterministic = True; loss_tolerance = 1.0; update_tolerance = 0.3"
    text = source(declared=declared, acting=acting)
    (found,) = violations(tmp_path, text)
    assert re.search(r"the loss of step 0 was [\d.]+ and then [\d.]+; draw random numbers", found)


def test_an_option_without_a_description_is_named(tmp_path: Path) -> None:
    top = "from accel_bench import Options\nclass Bare(Options):\n    level: int = 1\n"
    (found,) = violations(tmp_path, source(top=top, declared="Options = Bare"), scenario=NULL)
    assert "Bare.level has no description; write a docstring under the field" in found


def test_options_that_take_what_they_should_not_are_named(tmp_path: Path) -> None:
    top = (
        "from pydantic import ConfigDict\nfrom accel_bench import Options\n"
        "class Lax(Options):\n"
        "    model_config = ConfigDict(strict=False, extra='ignore')\n"
        "    level: int | None = 1\n    '''A level.'''\n"
    )
    found = violations(tmp_path, source(top=top, declared="Options = Lax"), scenario=NULL)
    assert any("Lax takes an option that it does not have" in text for text in found)
    assert any("Lax.level takes '1', which is not of its type" in text for text in found)


def test_options_that_are_read_from_text_are_no_violation(tmp_path: Path) -> None:
    reads = (
        "depth: Annotated[int, BeforeValidator(int)] = 1\n    '''A depth.'''\n"
        "    level: int = 1\n    '''A level.'''\n"
        "    @field_validator('level', mode='before')\n"
        "    def read(cls, value): return int(value)\n"
    )
    top = (
        "from typing import Annotated\nfrom pydantic import BeforeValidator, field_validator\n"
        f"from accel_bench import Options\nclass Reads(Options):\n    {reads}"
    )
    report = check(tmp_path, source(top=top, declared="Options = Reads"), scenario=NULL)
    told = {clause.sentence for clause in report.unproven}
    assert "depth, level: a validator stands before the type, so no wrong type was tried" in told


def test_a_loss_beyond_the_tolerance_is_named_with_both_figures(tmp_path: Path) -> None:
    acting = "run.model.lm_head.weight.data *= 8"
    (found,) = violations(tmp_path, source(declared="loss_tolerance = 1e-4", acting=acting))
    assert re.search(r"the loss differs by up to [\d.]+ %, 0.01 % allowed", found)
    assert "other_work=True" in found


def test_a_declared_update_tolerance_is_proven_or_named(tmp_path: Path) -> None:
    acting = "run.model.lm_head.weight.data *= 1.01"
    declared = "loss_tolerance = 0.1; update_tolerance = {}"
    for name in ("wide", "narrow"):
        (tmp_path / name).mkdir()
    report = check(tmp_path / "wide", source(declared=declared.format(0.3), acting=acting))
    shown = [one.sentence for one in report.proven if one.name == "update of the baseline"]
    assert shown and re.search(r"apart, 0\.3 allowed \(its update_tolerance\)", shown[0]), shown
    narrow = source(declared=declared.format(1e-7), acting=acting)
    (found,) = violations(tmp_path / "narrow", narrow)
    assert re.search(r"its update is [\d.]+ % apart from the baseline's, 1e-05 % allowed", found)
    assert "declare a wider update_tolerance" in found


def test_a_loss_that_differs_by_design_is_proven_to_do_so(tmp_path: Path) -> None:
    declared = "loss_tolerance = 0.9; update_tolerance = 5.0"
    report = check(tmp_path, source(declared=declared, acting="run.model.lm_head.weight.data *= 8"))
    said = {one.name: one.sentence for one in report.proven if "of the baseline" in one.name}
    assert said["loss of the baseline"].endswith(
        ", different by design: too far apart to be called faster"
    )
    assert ", different by design" in said["update of the baseline"]


def test_a_wider_tolerance_is_the_way_out_of_one_that_is_too_narrow(tmp_path: Path) -> None:
    text = source(declared="loss_tolerance = 1e-4", acting="run.model.lm_head.weight.data *= 8")
    (found,) = violations(tmp_path, text)
    assert "declare a wider loss_tolerance" in found


def test_other_work_is_acknowledged_and_still_told(tmp_path: Path) -> None:
    acting = "run.model.lm_head.weight.data *= 8"
    report = check(tmp_path, source(acting=acting), other_work=True)
    told = [clause.sentence for clause in report.unproven]
    assert any("acknowledged by other_work=True" in sentence for sentence in told)


def test_a_declared_dtype_and_an_architecture_in_which_it_fails_are_named(tmp_path: Path) -> None:
    acting = "assert run.scenario.model.dtype != 'bfloat16', 'no kernel'; run.model.model.layers"
    text = source(declared="dtypes = frozenset({'float32', 'bfloat16'})", acting=acting)
    found = violations(tmp_path, text, dtypes=None, archs=None)
    (dtype,) = [one for one in found if "bfloat16" in one]
    assert "bfloat16 is declared, and it does not run on tiny-llama-cpu in bfloat16" in dtype
    assert "AssertionError: no kernel" in dtype
    (other,) = [one for one in found if one != dtype]
    assert other.startswith("architectures: GPT2LMHeadModel is declared, and it does not run")


def test_faults_in_other_settings_alone_are_named_with_the_setting(tmp_path: Path) -> None:
    elsewhere = "run.scenario.model.dtype == 'bfloat16' or type(run.model).__name__[:4] == 'GPT2'"
    faults = "os.environ['LEFT'] = 'x'; self.count = 0; run.model.lm_head.weight.data *= 8"
    text = source(acting=f"if {elsewhere}: {faults}")
    asked = {"dtypes": ("bfloat16",), "archs": ("GPT2LMHeadModel",)}
    found = violations(tmp_path, text, **asked)
    settings = ("on tiny-llama-cpu in bfloat16 on cpu", "on distilgpt2 in float32 on cpu")
    for sentence in (
        "undone at the end: {where}: the environment variable LEFT",
        "evidence: {where}: report_evidence returns nothing but zeros",
        "loss of the baseline: {where}: the loss differs",
    ):
        for where in settings:
            (_,) = [one for one in found if one.startswith(sentence.format(where=where))]
    assert len(found) == 6, found


def test_what_every_run_leaves_is_said_once(tmp_path: Path) -> None:
    text = source(acting="os.environ['LEFT'] = 'x'")
    (found,) = violations(tmp_path, text, dtypes=("bfloat16",), scenario=NULL)
    assert found.startswith("undone at the end: the environment variable LEFT")


def test_a_dtype_in_which_not_even_the_baseline_trains_is_unproven(tmp_path: Path) -> None:
    report = check(tmp_path, source(declared="dtypes = frozenset({'float16'})"))
    assert any("not even the baseline runs" in one.sentence for one in report.unproven) or (
        "runs" in {clause.name for clause in report.proven}
    )


def test_an_architecture_without_a_model_in_the_catalog_is_unproven(tmp_path: Path) -> None:
    declared = "restricted_model_archs = frozenset({'LlamaForCausalLM', 'OtherForCausalLM'})"
    report = check(tmp_path, source(declared=declared), archs=None, scenario=NULL)
    told = [clause.sentence for clause in report.unproven if clause.name == "architectures"]
    assert told == ["no model of the catalog is a OtherForCausalLM"]


def test_a_need_of_an_adapter_that_is_not_declared_is_found(tmp_path: Path) -> None:
    runs, adapter = violations(tmp_path, source(acting="run.model.peft_config"))
    assert runs.startswith("runs: on tiny-llama-cpu in float32 on cpu: plugin_error")
    assert adapter.startswith("needs_adapter: it fails without an adapter and runs with 'lora'")


def test_a_gradient_that_is_cut_is_named(tmp_path: Path) -> None:
    acting = "run.model.model.layers[1].register_forward_pre_hook(lambda m, i: (i[0].detach(),))"
    found = violations(tmp_path, source(acting=acting), other_work=True)
    assert any("invalid" in text and "the gradient is cut" in text for text in found)
    assert any(text.startswith("gradient flow: 11 of 21 trained tensors") for text in found)


def test_a_plugin_for_another_device_is_not_said_to_pass(tmp_path: Path) -> None:
    report = check(tmp_path, source(declared="devices = frozenset({'cuda'})"))
    (only,) = report.unproven
    assert "devices are cuda and this is cpu" in only.sentence
    assert "runs" not in {clause.name for clause in report.proven}


def test_a_distribution_without_a_range_is_named_with_what_to_write(tmp_path: Path) -> None:
    (found,) = violations(tmp_path, source(), requires=("accel-bench>=0.1",), scenario=NULL)
    assert "has no lower or no upper end; write 'accel-bench>=0.1,<0.2'" in found


def test_a_missing_requirement_is_named_and_nothing_is_run(tmp_path: Path) -> None:
    declared = "requires = ('no-such-distribution>=1',)"
    (found,) = violations(tmp_path, source(declared=declared))
    assert "no-such-distribution>=1 is not installed" in found


def test_misspelt_hooks_and_wrong_declarations_stand_in_one_error(tmp_path: Path) -> None:
    text = source(declared="needs_adapter = 1").replace("def close_run", "def close_runs")
    found = violations(tmp_path, text)
    assert any("did you mean 'close_run'" in one for one in found)
    assert any("It.needs_adapter = 1" in one for one in found)


def test_a_name_that_nothing_has_is_one_violation() -> None:
    with pytest.raises(AssertionError, match="no plugin is called 'exampel'; did you mean"):
        check_plugin("exampel")


def test_options_that_are_refused_are_said_to_be_the_tests_fault(tmp_path: Path) -> None:
    found = violations(tmp_path, source(), options={"level": 1}, scenario=NULL)
    assert any("the given options are refused" in text for text in found)


def test_what_needs_processes_of_its_own_is_unproven() -> None:
    report = check_plugin("ddp")
    assert [clause.name for clause in report.unproven] == ["runs"]
    assert "needs processes of its own" in report.unproven[0].sentence


def test_the_report_is_printed_violations_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    violations(tmp_path, source(evidence="{}"), scenario=NULL)
    head, first, *_ = capsys.readouterr().out.splitlines()
    assert head.startswith("plugin 'it': 1 violated, ")
    assert first.startswith("  violated  evidence")
