"""Libraries that cut gradients or change the baseline, in the real program: nothing passes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from analysis_factory import limit
from fault_plugins.distribution import install
from faults.program import Finished, Program

from accel_bench import RankResult, Status

pytestmark = pytest.mark.long

FACTOR = limit("gradient norms", "approximations")

PLUGINS = {
    "gptq-sound": "Gptq",
    "gptq-evaluated": "GptqEvaluated",
    "int8-sound": "Int8",
    "int8-dynamic": "Int8Dynamic",
}

SOUND = ("gptq-sound", "int8-sound")
"""Those that train."""

SCENARIO = {
    "name": "traps",
    "model": {
        "id": "tiny-llama-cpu",
        "overrides": {"num_hidden_layers": 2},
        "dtype": "bfloat16",
    },
    "adapter": {
        "use": "lora",
        "r": 4,
        "target_modules": "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split(),
    },
    "data": {"use": "synthetic", "sequence_length": 16},
    "train": {"micro_batch_size": 1, "learning_rate": 1e-3},
    "resources": {"device": "cpu", "threads": 1},
    "stacks": {"lora": [], **{name: [name] for name in PLUGINS}},
    "measure": {"warmup": 1, "steps": 2, "rounds": 1},
}

PLAIN_LORA = """
import json, os, sys, torch
from peft import LoraConfig, get_peft_model
names = ("PYTORCH_ALLOC_CONF", "CUDA_DEVICE_ORDER")
before = [os.environ.get(name) for name in names]
get_peft_model(torch.nn.Sequential(torch.nn.Linear(2, 2)), LoraConfig(target_modules=["0"]))
libraries = [name for name in ("gptqmodel", "bitsandbytes", "torchao") if name in sys.modules]
found = {"before": before, "after": [os.environ.get(name) for name in names], "is": libraries}
print(json.dumps(found), file=open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def done(
    trapped_python: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Finished:
    """One session of all stacks, in the environment that has the libraries.

    Those that use the libraries are left to releases: the tests of their plugins run the same
    layers, and plugins/testing/tests/test_check.py cuts a gradient.
    """
    folder = tmp_path_factory.mktemp("traps")
    site = folder / "site"
    site.mkdir()
    source = Path(__file__).with_name("trapped.py").read_text(encoding="utf8")
    install(site, "accel-bench-trapped", PLUGINS, source)
    program = Program(folder, site, python=trapped_python)
    every = "release" in request.config.option.markexpr
    some = () if every else ("--only", "lora")
    return program.run(SCENARIO, "--format", "json", *some)


def rank(done: Finished, stack: str) -> RankResult:
    """The only rank of a stack."""
    (found,) = done.result(stack).ranks
    return found


def norms(done: Finished, stack: str) -> dict[str, float]:
    """Gradient norms of the second matrices of the adapters, the first ones being rightly zero."""
    flow: Any = rank(done, stack).effective.gradient_flow
    return {name: norm for name, norm in flow.gradient_norms.items() if "lora_B" in name}


@pytest.mark.release
@pytest.mark.parametrize("stack", ["gptq-evaluated", "int8-dynamic"])
def test_a_cut_gradient_is_invalid_however_fast(done: Finished, stack: str) -> None:
    result = done.result(stack)
    assert result.status is Status.INVALID, result.reasons
    assert "the gradient is cut" in result.reasons[0]
    assert done.code == 1
    with_gradient = [norm for norm in norms(done, stack).values() if norm]
    assert 0 < len(with_gradient) < len(norms(done, stack))


@pytest.mark.release
@pytest.mark.parametrize("stack", SOUND)
def test_the_same_library_without_the_trap_trains(done: Finished, stack: str) -> None:
    result = done.result(stack)
    assert result.status is Status.OK, result.reasons
    assert all(norms(done, stack).values())


@pytest.mark.release
def test_the_kernels_of_quantized_layers_are_read_back(done: Finished) -> None:
    plain = rank(done, "lora").effective.linear_kernels
    packed: Any = rank(done, "gptq-sound").effective.linear_kernels
    int8: Any = rank(done, "int8-sound").effective.linear_kernels
    assert plain == {"Linear": 15}
    assert {name: count for name, count in packed.items() if name != "Linear"} == {
        "TorchAtenLinear": 14
    }
    assert int8["Linear[Int8Tensor]"] == 14


@pytest.mark.release
def test_rounded_weights_have_gradients_like_the_baseline_s(done: Finished) -> None:
    rows = {row["stack"]: row for row in done.document["experiments"]}
    for stack in ("gptq-sound", "int8-sound"):
        assert not [reason for reason in rows[stack]["reasons"] if "gradient norms" in reason]
        for name, norm in norms(done, stack).items():
            assert 1 / FACTOR < norm / norms(done, "lora")[name] < FACTOR


@pytest.mark.release
def test_a_plain_adapter_imports_what_is_installed_and_that_changes_the_process(
    trapped_python: str, tmp_path: Path
) -> None:
    """The trap itself, without us."""
    found = tmp_path / "found.json"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [trapped_python, "-c", PLAIN_LORA, str(found)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    seen = json.loads(found.read_text())
    assert seen["is"] == ["gptqmodel", "bitsandbytes", "torchao"]
    assert seen["before"] == [None, None]
    assert all(seen["after"])
    assert "GPT-QModel" in done.stdout


def test_the_baseline_says_which_libraries_an_adapter_has_imported(done: Finished) -> None:
    assert rank(done, "lora").effective.libraries == ("bitsandbytes", "gptqmodel", "torchao")


@pytest.mark.parametrize(
    "stack",
    ["lora", *(pytest.param(one, marks=pytest.mark.release) for one in SOUND)],
)
def test_allocator_and_device_order_are_the_same_in_all_stacks_and_recorded(
    done: Finished, stack: str
) -> None:
    effective: Any = rank(done, stack).effective
    assert effective.environment["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert effective.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    changed = set(effective.environment_changes)
    assert not changed & {"PYTORCH_ALLOC_CONF", "CUDA_DEVICE_ORDER"}


def test_what_libraries_print_is_in_the_log_and_not_on_stdout(done: Finished) -> None:
    assert "GPT-QModel" in done.log("lora")
    assert "GPT-QModel" not in done.out + done.err
    assert "lora" in {row["stack"] for row in done.document["experiments"]}
