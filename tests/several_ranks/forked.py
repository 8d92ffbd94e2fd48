"""Run scenarios of several ranks in children of one process, which imports torch once for them all.

`python forked.py SCENARIO... RESULTS`: a JSON file of results, by scenario and stack. Modules that
`FORKED_IMPORTS` names are imported once, too.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

# Before any work is done in this process: its threads would not be there in a child.
import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import transformers.models.llama.modeling_llama
import transformers.models.mixtral.modeling_mixtral  # noqa: F401
from kit import this_machine
from launcher import Forked

from accel_bench import Options
from accel_bench.planning.plan import Planned, PlanRequest, make_plan
from accel_bench.plugins.active import ActivePlugin, ActivePlugins
from accel_bench.result import Result
from accel_bench.runner.attempt import make_attempt, run_attempt
from accel_bench.scenario.find import read_draft


def run(planned: Planned, root: Path) -> Result:
    """Return the result of one planned experiment."""
    folder = root / planned.experiment.stack.name
    folder.mkdir(parents=True)
    fields = {"cache_folder": str(root), "experiment": planned.experiment}
    attempt = make_attempt(root, folder, "forked", this_machine(), purpose="measure", **fields)
    others = [one for one in planned.active.plugins if one.slot != "launcher"]
    forking = ActivePlugin(Forked(Options(), "forked"), "forked", "launcher", "tests")
    return run_attempt(attempt, ActivePlugins([*others, forking]), lambda _: None, lambda one: one)


def main(paths: list[str]) -> None:
    """Run all stacks of all scenarios."""
    *scenarios, out = map(Path, paths)
    for name in os.environ.get("FORKED_IMPORTS", "").split():
        importlib.import_module(name)
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for scenario in scenarios:
        request = PlanRequest(oversubscribe=True)
        for planned in make_plan(read_draft(scenario), this_machine(), request).planned:
            name = planned.experiment.stack.name
            with tempfile.TemporaryDirectory() as root:
                shown: dict[str, Any] = {"skipped": list(planned.skipped)}
                if not planned.skipped:
                    result = run(planned, Path(root))
                    shown["result"] = result.model_dump(mode="json")
                    if not result.status.completed:
                        logs = sorted(Path(root).rglob("rank*.log"))
                        shown["logs"] = {log.name: log.read_text()[-4000:] for log in logs}
                found.setdefault(scenario.stem, {})[name] = shown
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
