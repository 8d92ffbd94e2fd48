"""`accel-bench results convergence` says how stored experiments learned."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli.program import Done, call
from fault_plugins.distribution import install

from accel_bench.analysis.tables.listing import metrics_by_name
from accel_bench.store.database import open_store

SCENARIO = """\
name: learning
model:
  id: tiny-llama-cpu
  overrides: {hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1, num_attention_heads: 2,
    num_key_value_heads: 1, vocab_size: 64}
data: {use: synthetic, sequence_length: 16, vocab_size: 64, samples: 64, held_out: 0.2}
train: {micro_batch_size: 4, learning_rate: 1e-2}
resources: {device: cpu, threads: 1}
measure: {warmup: 2, steps: 3, rounds: 1, phase_steps: 0}
evaluate: {steps: 60, every: 20}
stacks: {baseline: [], leaking: [leaks]}
"""

LEAKS = """
from accel_bench import Plugin, hookimpl


class Leaks(Plugin):
    '''Keeps half a MiB of every forward pass that trains.'''

    @hookimpl
    def accelerate_model(self, run):
        import mmap

        kept = []

        def keep(module, inputs, output):
            if module.training:
                kept.append(mmap.mmap(-1, 2**19))  # Memory that nothing has freed before.
                kept[-1].write(b"x" * 2**19)

        handle = run.model.register_forward_hook(keep)
        run.on_close(handle.remove)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each stack, by the program."""
    folder = tmp_path_factory.mktemp("convergence")
    site = folder / "site"
    site.mkdir()
    install(site, "accel-bench-leaks", {"leaks": "Leaks"}, LEAKS)
    (folder / "learning.yaml").write_text(SCENARIO)
    found = folder / "results"
    done = call("run", "learning.yaml", "--results", str(found), "-q", folder=folder,
                PYTHONPATH=str(site))  # fmt: skip
    assert done.code == 0, done.out + done.err
    return found


def convergence(results: Path, *arguments: str) -> Done:
    done = call("results", "convergence", "--results", str(results), *arguments)
    assert done.code == 0, done.err
    return done


def test_a_planted_leak_is_found_and_none_in_the_ordinary_run(results: Path) -> None:
    document = json.loads(convergence(results, "--format", "json").out)
    growth = {one["stack"]: one["memory_growth"] for one in document["experiments"]}
    assert growth["baseline"]["verdict"] == "does not hold"
    assert growth["leaking"]["verdict"] == "holds"
    assert growth["leaking"]["bytes_per_step"]["median"] == pytest.approx(2**19, rel=0.2)


def test_what_a_loss_took_is_printed_in_steps_tokens_seconds_and_dollars(results: Path) -> None:
    printed = convergence(results, "--loss", "3.9", "--price", "3.6", "--curves").out
    assert "validation loss before and after training" in printed
    assert "validation loss of 3.9 reached after" in printed
    assert "1 of 1" in printed
    assert "price: 3.6 USD per hour" in printed
    assert "It is open whether leaking reaches 3.9 sooner" in " ".join(printed.split())
    assert "memory of leaking grows" in " ".join(printed.split()).replace("Memory", "memory")
    assert "baseline: validation loss" in printed


def test_csv_has_a_row_for_each_point_of_each_curve(results: Path) -> None:
    text = convergence(results, "--loss", "0.001", "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["steps"] for row in rows if row["stack"] == "baseline"] == [
        "0.0", "5.0", "25.0", "45.0", "65.0"
    ]  # fmt: skip
    assert {row["to_loss_verdict"] for row in rows} == {"not tested"}
    assert {row["to_loss_seconds_median"] for row in rows} == {""}


def test_results_show_the_stages_and_a_report_has_the_section(results: Path) -> None:
    with open_store(results, write=False) as store:
        run = next(one for one in store.results() if one.experiment.stack.name == "baseline")
    shown = call("results", "show", run.run_id, "--all", "--results", str(results)).out
    for stage in ("evaluate", "learn", "predict"):
        assert f"name: {stage}" in shown
    done = call("report", "--with-names", "--results", str(results), "--markdown", "-")
    assert done.code == 0, done.err
    assert "validation loss before and after training" in done.out


def test_the_validation_loss_is_a_metric_of_the_run_that_conditions_know(results: Path) -> None:
    chosen = ("results", "list", "--results", str(results), "--format", "json", "--where")
    assert len(json.loads(call(*chosen, "metrics.validation_loss < 4.1").out)) == 2
    assert json.loads(call(*chosen, "metrics.validation_loss < 0.1").out) == []
    with open_store(results, write=False) as store:
        run = next(iter(store.results()))
    assert run.ranks[0].learning is not None
    assert metrics_by_name(run)["validation_loss"].value == pytest.approx(
        run.ranks[0].learning.evaluations[-1].loss
    )


def test_without_a_curve_it_says_so(tmp_path: Path) -> None:
    with open_store(tmp_path / "empty", write=True):
        pass
    assert "no experiment has a loss curve" in convergence(tmp_path / "empty").out


def test_options_of_other_commands_are_refused(results: Path) -> None:
    done = call("results", "convergence", "--results", str(results), "--tokens", "1e6")
    assert done.code == 2
    assert "belongs to `accel-bench results cost`" in done.err
