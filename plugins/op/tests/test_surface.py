"""Public names for authors of benchmarks and executors."""

from __future__ import annotations

import ast
from pathlib import Path

import accel_bench_op

PLUGINS = Path(__file__).parents[2]


def test_the_other_plugins_of_ours_import_what_is_promised_alone() -> None:
    others = {*PLUGINS.glob("*/accel_bench_*/**/*.py")}
    found = {
        (f"{path.relative_to(PLUGINS)}: {node.module}", alias.name)
        for path in others - {*PLUGINS.glob("op/**/*.py")}
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("accel_bench_op")
        for alias in node.names
    }
    assert found, "plugins/fused-kernels brings executors"
    promised = set(accel_bench_op.__all__)
    assert not [one for one in found if not one[0].endswith(": accel_bench_op")]
    assert {name for _, name in found} <= promised
