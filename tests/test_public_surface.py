"""What plugin authors import: complete, light, and nothing beyond what is promised."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import accel_bench

PROMISED = {
    "Batch",
    "Device",
    "Engine",
    "Experiment",
    "Job",
    "Machine",
    "Matmul",
    "Metric",
    "Observer",
    "Options",
    "Plugin",
    "RankProcess",
    "RankResult",
    "Result",
    "Run",
    "Sample",
    "Scenario",
    "Status",
    "Stopwatch",
    "TokenCounts",
    "Window",
    "architecture_of",
    "check_fit",
    "describe_quantized",
    "reset_compiler",
    "hookimpl",
    "load_base_model",
    "model_directory",
    "quantize_seconds",
    "read_compilation",
    "read_config",
}
ROOT = Path(__file__).resolve().parents[1]


def test_the_public_names_are_those_that_are_promised() -> None:
    assert set(accel_bench.__all__) == PROMISED
    assert accel_bench.__all__ == sorted(accel_bench.__all__)


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_a_public_name_resolves_and_is_explained(name: str) -> None:
    found = getattr(accel_bench, name)
    assert name in dir(accel_bench)
    if inspect.isclass(found):
        assert inspect.getdoc(found)
        assert found.__name__ == name


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = accel_bench.Nothing


def test_importing_the_package_costs_nothing() -> None:
    program = "import sys; before = set(sys.modules); import accel_bench; " + (
        "print(sorted(name.partition('.')[0] for name in set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert set(ast.literal_eval(done.stdout)) - sys.stdlib_module_names == {"accel_bench"}


@pytest.mark.parametrize("name", sorted(PROMISED))
def test_type_checkers_see_every_public_name(name: str) -> None:
    tree = ast.parse((ROOT / "core" / "accel_bench" / "__init__.py").read_text(encoding="utf8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert name in seen


def imported_from_core(path: Path) -> set[str]:
    """Modules and names of accel_bench that a module imports."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    return {
        f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "accel_bench"
        for alias in node.names
    }


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path in (ROOT / "plugins").glob("*/accel_bench_*/*.py")
        if "tests" not in path.relative_to(ROOT).parts
    ),
    ids=lambda path: path.parent.name + "/" + path.name,
)
def test_plugins_import_the_public_surface_and_the_errors_alone(path: Path) -> None:
    for found in imported_from_core(path):
        module, name = found.split(":")
        assert module == "accel_bench.errors" or (module == "accel_bench" and name in PROMISED)
