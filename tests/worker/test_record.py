"""What plugins show at the end of a run, brought together."""

from __future__ import annotations

import json
from pathlib import Path

from cli.program import call, write_nulls


def test_a_stack_that_uses_its_slot_s_plugin_keeps_what_that_shows(tmp_path: Path) -> None:
    """Of two of one name, that of the slot answers nothing and has nothing to show."""
    stacks = "{baseline: [], early: [{use: adamw, optimizer_in_backward: true}]}"
    write_nulls(
        tmp_path,
        stacks=stacks,
        model="{id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}",
        data="{use: synthetic, sequence_length: 16}",
        optimizer="adamw",
        engine="torch",
        resources="{device: cpu}",
        measure="{warmup: 1, steps: 2, rounds: 1, phase_steps: 0}",
    )
    file, results = str(tmp_path / "nulls.yaml"), str(tmp_path / "results")
    done = call("run", file, "-q", "--format", "json", "--results", results)
    assert done.code == 0, done.err
    rows = {row["stack"]: row for row in json.loads(done.out)["experiments"]}
    assert rows["early"]["evidence"]["adamw"]["optimizer_in_backward"] is True
    assert "optimizer_in_backward" not in rows["baseline"]["evidence"]["adamw"]
