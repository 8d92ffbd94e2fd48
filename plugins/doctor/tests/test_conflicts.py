"""Incompatible libraries are found from metadata alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from accel_bench_doctor.checks import changes_of_every_stack, incompatibilities
from fault_plugins.bare import lay_out
from packaging.requirements import Requirement

from accel_bench.machine.info import GPU, Machine, read_machine
from accel_bench.machine.libraries import accelerator_modules, known_distributions, read_libraries
from accel_bench.machine.provenance import distribution_version
from accel_bench.plugins.registry import unmet_requirement


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that replaces the path of installed distributions."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for cached in (unmet_requirement, distribution_version):
        cached.cache_clear()
    yield tmp_path
    for cached in (unmet_requirement, distribution_version):
        cached.cache_clear()


@pytest.fixture(scope="module")
def machine() -> Machine:
    """This machine without a GPU."""
    return read_machine().model_copy(update={"gpus": ()})


GOOD = {"gptqmodel": "7.6.0", "optimum": "2.3.0", "peft": "0.21.2", "torch": "2.13.0"}

PAIRS = [
    ({"gptqmodel": "7.7.0", "optimum": "2.3.0", "torch": "2.13.0+cpu"}, "needs torch 2.14.1"),
    ({"gptqmodel": "7.6.0", "peft": "0.21.2"}, "peft wants optimum beside it"),
    ({"gptqmodel": "7.6.0", "optimum": "1.9", "peft": "0.21.2"}, "peft wants optimum beside it"),
    ({"gptqmodel": "6.0.0", "optimum": "2.3.0", "peft": "0.21.2"}, "a GPTQModel before 7.0"),
    ({"torchao": "0.15.0", "peft": "0.21.2"}, "a torchao before 0.16"),
    ({"auto_gptq": "0.7.1", "transformers": "5.23.0"}, "its import fails beside transformers 5"),
    ({"triton": "3.6.1", "numpy": "2.3.0"}, "Triton 3.6 wants numpy 2.2"),
    ({"amdsmi": "7.0", "ray": "2.60"}, "`import ray` fails"),
]
"""Installed distributions, and the expected conflict."""


@pytest.mark.parametrize(("versions", "words"), PAIRS)
def test_a_known_pair_is_found_with_what_goes_wrong_and_what_helps(
    site: Path, machine: Machine, versions: dict[str, str], words: str
) -> None:
    for name, version in versions.items():
        lay_out(site, name, version)
    (found,) = incompatibilities(machine, None)
    assert words in found.because
    assert found.do
    assert set(found.found.values()) <= {*versions.values(), ""}


@pytest.mark.parametrize(
    "versions",
    [
        {},
        GOOD,
        {"gptqmodel": "7.7.0", "optimum": "2.3.0", "torch": "2.14.1"},
        {"gptqmodel": "7.6.0"},
        {"auto_gptq": "0.7.1", "transformers": "4.44.0"},
        {"triton": "3.6.0", "numpy": "2.2.6"},
        {"triton": "3.9.0", "numpy": "2.3.0"},
        {"ray": "2.60"},
    ],
)
def test_what_goes_together_is_not_blamed(
    site: Path, machine: Machine, versions: dict[str, str]
) -> None:
    for name, version in versions.items():
        lay_out(site, name, version)
    assert incompatibilities(machine, None) == ()


def test_a_version_that_a_library_rules_out_is_found(site: Path, machine: Machine) -> None:
    lay_out(site, "gptqmodel", "7.6.0", ("numpy==2.2.6", "absent; extra == 'all'"))
    lay_out(site, "numpy", "2.2.5")
    (found,) = incompatibilities(machine, None)
    assert found.because.endswith(
        "requires something else: numpy==2.2.6 is needed, 2.2.5 is installed"
    )


def test_a_library_that_plain_stacks_import_too_is_no_fault_but_is_said(
    site: Path, machine: Machine
) -> None:
    for name, version in GOOD.items():
        lay_out(site, name, version)
    (found,) = changes_of_every_stack()
    assert found.found == {"gptqmodel": "7.6.0", "peft": "0.21.2"}
    assert incompatibilities(machine, None) == ()


@pytest.mark.parametrize(
    ("torch", "built_for", "driver", "words"),
    [
        ("2.13.0+cpu", None, "13.0", ["a GPU is here, and torch is built for CPUs only"]),
        ("2.13.0", "13.0", "12.8", ["torch is built for CUDA 13.0, the driver knows up to 12.8"]),
        ("2.13.0", "12.9", "12.8", []),
        ("2.13.0", "12.6", "13.0", []),
        ("2.13.0", None, None, []),
    ],
)
@pytest.mark.usefixtures("site")
def test_a_torch_that_cannot_use_the_gpu_is_found(
    torch: str, built_for: str | None, driver: str | None, words: list[str], machine: Machine
) -> None:
    gpu = GPU(index=0, name="a GPU", uuid="GPU-0", memory_bytes=1, compute_capability=(8, 6))
    update = {"gpus": (gpu,), "cuda": driver, "versions": {"torch": torch}}
    found = incompatibilities(machine.model_copy(update=update), built_for)
    assert [one.because for one in found] == words


def test_every_rule_of_the_list_is_about_requirements_that_can_be_read() -> None:
    known = read_libraries()
    rules = (*known.incompatible, *known.changes_every_stack)
    texts = [text for rule in rules for text in (*rule.when, *rule.missing)]
    assert all(Requirement(text).name for text in texts)


def test_the_list_names_each_library_once_and_the_modules_to_watch() -> None:
    assert len(set(known_distributions())) == len(known_distributions())
    assert {"bitsandbytes", "gptqmodel", "torchao", "liger_kernel"} <= set(accelerator_modules())
