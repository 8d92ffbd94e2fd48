"""What plugin authors import: complete, light, and nothing beyond what is promised."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module, metadata
from pathlib import Path

import pytest

import accel_bench

PROMISED = {
    "ExperimentComparison",
    "ExperimentSummary",
    "Format",
    "ImportedRow",
    "SourceFile",
    "Results",
    "RunDescription",
    "RunProgress",
    "Step",
    "describe_run",
    "StoredResults",
    "Summary",
    "accelerate",
    "open_store",
    "run",
    "run_purpose",
    "Allocation",
    "Node",
    "Placement",
    "cache_folder",
    "device_words",
    "read_machine",
    "read_placement",
    "Batch",
    "Device",
    "DeviceType",
    "Engine",
    "Experiment",
    "Job",
    "Machine",
    "Attention",
    "Matmul",
    "Workload",
    "Metric",
    "ModelUse",
    "Observer",
    "StepObserver",
    "TimeSeries",
    "read_events",
    "Options",
    "Plugin",
    "LocalProcess",
    "NodePlace",
    "RankProcess",
    "rank_environment",
    "RankResult",
    "Redactor",
    "Result",
    "Run",
    "Sample",
    "Scenario",
    "Stage",
    "Status",
    "Stopwatch",
    "TokenCounts",
    "Held",
    "Loss",
    "Task",
    "held_tokens",
    "Window",
    "unquantizable",
    "architecture_of",
    "available_cores",
    "check_fit",
    "conclusion",
    "describe_quantized",
    "reset_compiler",
    "hookimpl",
    "load_base_model",
    "model_config",
    "model_directory",
    "model_problems",
    "nvml",
    "python_command",
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


@pytest.mark.parametrize(
    ("owner", "old", "new"),
    [
        (accel_bench, "forget_compilation", "did you mean 'reset_compiler'"),
        (
            accel_bench.RankResult(rank=0, status=accel_bench.Status.OK),
            "realised",
            "RankResult.realised is called 'effective' now",
        ),
        (
            accel_bench.Window(started=0, ended=1),
            "disturbances",
            "Window.disturbances is called 'instabilities' now",
        ),
    ],
)
def test_a_former_name_is_answered_with_the_one_of_today(owner: object, old: str, new: str) -> None:
    with pytest.raises(AttributeError, match=new):
        getattr(owner, old)


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


def imported_from(top: str, path: Path) -> set[tuple[str, str]]:
    """Modules of a package that a module imports, each with the name that it takes of it."""
    tree = ast.parse(path.read_text(encoding="utf8"))
    nodes = list(ast.walk(tree))
    whole = {(a.name, "") for node in nodes if isinstance(node, ast.Import) for a in node.names}
    parts = {
        (str(node.module), alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return {one for one in whole | parts if one[0].split(".")[0] == top}


def is_public(module: str, name: str) -> bool:
    """Whether plugins may import a name of a module: what else there is changes without notice."""
    if module == "accel_bench":
        return name in {"", *PROMISED}
    rooms = ("accel_bench.errors.", "accel_bench.modeling.")
    return f"{module}.".startswith(rooms)


def programs_in_the_box() -> set[str]:
    """Packages of ours that bring more than plugins: import-linter knows what they may import."""
    entries = metadata.distribution("accel-bench").entry_points
    parts = ("accel_bench", "accel_bench.devices", "accel_bench.samples")
    other = {entry.module for entry in entries if entry.group not in parts}
    return {module.partition(".")[0] for module in other} - {"accel_bench"}


@pytest.mark.box
def test_plugins_import_the_public_face_alone() -> None:
    """Those in the box have no privilege: a stranger's plugin can do all that they do."""
    boxed = {*(ROOT / "core" / "accel_bench" / "builtin").rglob("*.py")}
    packages = {*(ROOT / "plugins").glob("*/accel_bench_*")}
    packages -= {one for one in packages if one.name in programs_in_the_box()}
    separate = [path for package in packages for path in package.rglob("*.py")]
    private = {
        f"{path.relative_to(ROOT)}: {module}: {name}"
        for path in (*boxed, *separate)
        for module, name in imported_from("accel_bench", path)
        if not is_public(module, name)
        and not (path in boxed and module.startswith("accel_bench.builtin"))
    }
    assert not private


@pytest.mark.box
def test_distributions_import_what_packages_in_the_box_promise_alone() -> None:
    folders = {*(ROOT / "plugins").glob("*/accel_bench_*")}
    boxed = {one.name for one in folders if not (one.parent / "pyproject.toml").exists()}
    paths = [path for one in folders if one.name not in boxed for path in one.rglob("*.py")]
    private = {
        f"{path.relative_to(ROOT)}: {module}: {name}"
        for package in boxed
        for path in paths
        for module, name in imported_from(package, path)
        if module != package or name not in import_module(package).__all__
    }
    assert not private
