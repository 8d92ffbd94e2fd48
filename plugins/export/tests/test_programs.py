"""Every declared counterpart, held by the program whose setting it is.

TRL, Trainer and accelerate parse it in the environment with real trainers. The wheels of the others
need more than is installed: axolotl's schema and LLaMA-Factory's arguments are imported from theirs
(with omegaconf, which reads files alone, left empty), and torchtune's and torchtitan's are read as
text, from the files in the wheels.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accel_bench_export.equivalents import Equivalent, programs, read_equivalents, rules_among
from accel_bench_export.rules import Rule, translate
from accel_bench_export.trainers import read_trainer, readable_names

pytestmark = pytest.mark.box

WHEELS = "ACCEL_BENCH_WHEELS"
"""Variable with the folder of the wheels of axolotl, LLaMA-Factory, torchtune and torchtitan."""

FILES = sorted(Path(__file__).parents[3].glob("plugins/*/*/sample_configurations/equivalents.yaml"))
"""Counterparts of all distributions of the checkout, whether they are installed or not."""

VALUES: dict[str, Any] = {
    "alpha": 16.0, "autocast_adapter_dtype": True, "backend": "inductor", "betas": [0.9, 0.95],
    "cpu_offload": False, "double_quant": True, "dropout": 0.1, "eps": 1e-8, "every": 2,
    "experts": "grouped_mm", "field": "text", "fullgraph": False, "fused": True, "keep": ["mm"],
    "messages": "turns", "mode": "default", "momentum": 0.5, "path": "rows.jsonl",
    "prompt": "prompt", "answer": "answer", "chosen": "chosen", "rejected": "rejected", "r": 8,
    "reshard_after_forward": True, "replicate": 1, "sequence_length": 64, "source": "path",
    "stage": 2, "target_modules": ["q_proj", "v_proj"], "tensor": 1, "weight_decay": 0.1,
    "quant_type": "nf4",
}  # fmt: skip
"""Values of options that no condition gives."""

UNBUILT = {
    "deepspeed": "DeepSpeed is not installed there",
    "fsdp": "several processes are needed",
    "mixed_precision": "",
    "tf32": "a GPU is needed",
}
"""Settings whose value is not read back, with the reason."""


UNBUILT_ERROR = "'deepspeed>=0.9.3' distribution was not found"
"""Error of a parser that has accepted the setting and misses the library."""


def options_for(rule: Rule) -> dict[str, Any]:
    """Options under which a rule holds."""
    given = {key: one[0] if isinstance(one, list) else one for key, one in rule.when.items()}
    if rule.unless.keys() & {"prompt.0", "prompt.2"}:
        given["prompt"] = ["instruction", "input", "hint"]
    if "path" in rule.unless:
        given["path"] = "folder"
    return {**{key: one for key, one in VALUES.items() if key in rule.options}, **given}


def declarations() -> Iterator[tuple[str, tuple[Equivalent, ...]]]:
    """Yield each plugin of the checkout with its counterparts."""
    for file in FILES:
        yield from read_equivalents(file).plugins.items()


def declared_settings(program: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings of each declared counterpart, and of the program's own table."""
    for plugin, equivalents in declarations():
        for rule in rules_among(equivalents, program):
            options = options_for(rule)
            assert rule.holds(options), (plugin, rule)
            if settings := translate([rule], options).settings:
                yield plugin, settings
    work = {
        "model.id": "org/m", "model.dtype": "float32", "model.attention": "sdpa",
        "train.micro_batch_size": 2, "train.gradient_accumulation": 3, "train.learning_rate": 1e-4,
        "train.gradient_checkpointing": True, "train.seed": 3, "train.max_grad_norm": 1.0,
        "train.global_batch_size": 6, "data.seed": 4, "data.sequence_length": 64,
        "measure.steps": 5, "resources.device": "cpu", "resources.devices": 2, "resources.nodes": 1,
        "task.beta": 0.2, "task.nll_scale": 0.5, "task.length_normalization": False,
        "world_size": 2,
    }  # fmt: skip
    table = read_trainer(program)
    yield "", {**table.always}
    for rule in table.work:
        options = {**work, **options_for(rule)}
        if settings := translate([rule], options).settings:
            yield "", settings


def test_each_plugin_of_the_box_with_a_counterpart_names_known_programs() -> None:
    known, found = set(readable_names()), dict(declarations())
    assert {"bitsandbytes", "deepspeed", "fused-kernels", "torchao", "torch-compile"} <= {*found}
    for plugin, equivalents in found.items():
        for one in equivalents:
            assert {name for names in one.to for name in programs(names)} <= known, plugin


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        here = found
        for part in parents:
            here = here.setdefault(part, {})
        here[last] = value
    return found


@pytest.mark.parametrize("program", ["trl", "trainer", "accelerate"])
def test_a_program_that_is_installed_reads_each_counterpart(
    program: str, ask_trainers: Any
) -> None:
    base = {"use_cpu": True}
    if program == "accelerate":
        base |= {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO",
                 "mixed_precision": "no", "debug": False, "num_processes": 1}  # fmt: skip
    wanted = [(plugin, nested(settings)) for plugin, settings in declared_settings(program)]
    texts = [yaml.safe_dump({**base, **settings}) for _, settings in wanted]
    found = ask_trainers("build", program=program, texts=texts)
    for (plugin, settings), one in zip(wanted, found, strict=True):
        if settings.keys() & UNBUILT.keys() and "error" in one:
            assert "unrecognized" not in one["error"].lower(), (plugin, one)
            continue
        assert "error" not in one, (plugin, settings, one)
        missing = settings.keys() - one.keys()
        assert not missing, (plugin, missing)
        for key, value in settings.items():
            if isinstance(value, bool | int | float) and key not in UNBUILT:
                assert one[key] == value, (plugin, key)


@pytest.fixture(scope="module")
def wheels() -> Path:
    folder = os.environ.get(WHEELS)
    if not folder:
        pytest.skip(f"{WHEELS} names no folder with the wheels of other programs")
    return Path(folder).absolute()


def wheel(folder: Path, name: str) -> Path:
    return next(iter(sorted(folder.glob(f"{name}-*.whl"))))


@pytest.mark.release
@pytest.mark.parametrize(
    ("program", "name"), [("axolotl", "axolotl"), ("llama-factory", "llamafactory")]
)
def test_a_schema_in_a_wheel_accepts_each_counterpart(
    program: str, name: str, wheels: Path, ask_trainers: Any
) -> None:
    wanted = [(plugin, nested(settings)) for plugin, settings in declared_settings(program)]
    found = ask_trainers(
        "check",
        program=program,
        wheel=str(wheel(wheels, name)),
        settings=[one for _, one in wanted],
    )
    for (plugin, settings), error in zip(wanted, found, strict=True):
        if not (settings.keys() & UNBUILT.keys() and UNBUILT_ERROR in error):
            assert not error, (plugin, settings, error)


def keys_of(document: Any, prefix: str = "") -> Iterator[str]:
    for key, value in document.items() if isinstance(document, dict) else ():
        yield f"{prefix}{key}"
        yield from keys_of(value, f"{prefix}{key}.")


def parameters_of(source: str, name: str) -> list[str]:
    """Parameters of a function of a module's text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return [one.arg for one in (*node.args.args, *node.args.kwonlyargs)]
    return []


@pytest.mark.release
def test_each_counterpart_of_torchtune_is_a_key_of_its_recipes_or_their_components(
    wheels: Path,
) -> None:
    with zipfile.ZipFile(wheel(wheels, "torchtune")) as files:
        recipes = [name for name in files.namelist() if re.search(r"configs/.*\.yaml$", name)]
        known = {key for name in recipes for key in keys_of(yaml.safe_load(files.read(name)))}
        builders = files.read("torchtune/models/llama3_2/_model_builders.py").decode()
        known |= {f"model.{one}" for one in parameters_of(builders, "lora_llama3_2_1b")}
        data = files.read("torchtune/datasets/_instruct.py").decode()
        known |= {f"dataset.{one}" for one in parameters_of(data, "instruct_dataset")}
        losses = files.read("torchtune/modules/loss/__init__.py").decode()
        schedulers = files.read("torchtune/training/lr_schedulers.py").decode()
    constant = "get_cosine_schedule_with_warmup"
    known |= {f"lr_scheduler.{one}" for one in parameters_of(schedulers, constant)}
    known |= {f"optimizer.{one}" for one in ("betas", "eps", "fused", "momentum")}  # torch's own
    for plugin, settings in declared_settings("torchtune"):
        assert settings.keys() <= known, (plugin, settings.keys() - known)
        if component := settings.get("loss._component_"):
            assert component.rpartition(".")[2] in losses


@pytest.mark.release
def test_the_learning_rate_of_torchtune_is_constant(
    wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(wheel(wheels, "torchtune")) as files:
        source = files.read("torchtune/training/lr_schedulers.py").decode()
    settings = read_trainer("torchtune").always
    name = str(settings["lr_scheduler._component_"]).rpartition(".")[2]
    (made,) = [one for one in ast.parse(source).body if getattr(one, "name", "") == name]
    imports = "import math\nfrom torch.optim.lr_scheduler import LambdaLR\n"
    head = f"from __future__ import annotations\n{imports}"
    (tmp_path / "torchtunes_schedulers.py").write_text(head + ast.unparse(made))
    monkeypatch.syspath_prepend(tmp_path)
    scheduler_of = getattr(importlib.import_module("torchtunes_schedulers"), name)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.25)
    given = {key: settings[f"lr_scheduler.{key}"] for key in ("num_warmup_steps", "num_cycles")}
    scheduler = scheduler_of(optimizer, num_training_steps=5, **given)
    rates = []
    for _ in range(5):
        rates += scheduler.get_last_lr()
        optimizer.step()
        scheduler.step()
    assert rates == [0.25] * 5


def fields_of(source: str, name: str) -> set[str]:
    """Fields of a class, or of its inner class `Config` if it has one, of a module's text."""
    classes = {
        one.name: one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ClassDef)
    }
    body = classes[name].body
    inner = [one for one in body if isinstance(one, ast.ClassDef) and one.name == "Config"]
    fields = [one for one in (inner[0].body if inner else body) if isinstance(one, ast.AnnAssign)]
    return {one.target.id for one in fields if isinstance(one.target, ast.Name)}


TORCHTITAN = {
    "": ("trainer.py", "Trainer"),
    "training": ("config/configs.py", "TrainingConfig"),
    "parallelism": ("config/configs.py", "ParallelismConfig"),
    "compile": ("config/configs.py", "CompileConfig"),
    "debug": ("config/configs.py", "DebugConfig"),
    "lr_scheduler": ("components/optimizer/lr_scheduler.py", "LRSchedulersContainer"),
    "optimizer": ("components/optimizer/optimizer.py", "OptimizersContainer"),
}
"""File and class of each section of torchtitan's configuration."""


@pytest.mark.release
def test_each_counterpart_of_torchtitan_is_a_field_of_its_configurations(wheels: Path) -> None:
    with zipfile.ZipFile(wheel(wheels, "torchtitan")) as files:
        known = {
            section: fields_of(files.read(f"torchtitan/{path}").decode(), name)
            for section, (path, name) in TORCHTITAN.items()
        }
        policies = files.read("torchtitan/distributed/activation_checkpoint.py").decode()
    for plugin, settings in declared_settings("torchtitan"):
        for key, value in settings.items():
            section, _, name = key.partition("[")[0].rpartition(".")
            assert name in known[section], (plugin, key)
            if key == "activation_checkpoint":
                assert f"class {str(value).partition('.')[0]}(" in policies
