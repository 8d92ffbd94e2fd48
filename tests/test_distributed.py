"""Two ranks against one process: the same global batch gives the same losses and tokens.

With SGD, since an Adam takes the same steps whatever the scale of the gradients. The one process is
this one; the ranks are its children, as the tests of the launchers start ranks that train too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli.program import call
from fault_plugins.distribution import install
from several_ranks.scenarios import forking, validation_losses

from accel_bench import Result, Sample, Status
from accel_bench.analysis.metrics.throughput import run_throughput, token_summary
from accel_bench.store.database import open_store
from accel_bench.testing import run_scenario

pytestmark = [pytest.mark.long, pytest.mark.box]

ENGINES = ("torch", "hf-trainer")

SCENARIO = """
name: shards
model: {id: tiny-llama-cpu, overrides: {num_hidden_layers: 1}}
data: {use: text, source: path, path: TEXT, sequence_length: 32, held_out: 5}
optimizer: sgd
train: {global_batch_size: 8, gradient_accumulation: 1, learning_rate: 0.1}
resources: {device: cpu, threads: 1}
measure: {warmup: 1, steps: 4, rounds: 1}
"""

BOTH_ENGINES = """
stacks:
  torch: [rehearsing]
  hf-trainer: {set: {engine.use: hf-trainer}}
"""

PADDED = {"data.packing": False, "data.padding": "longest", "data.sequence_length": 256}

REHEARSING = """
from accel_bench import Plugin, hookimpl


class Rehearsing(Plugin):
    '''Asks for a rehearsal, and notes the world of every process that builds a model.'''

    @hookimpl
    def prepare_experiment(self, run):
        run.rehearsal = True

    @hookimpl
    def accelerate_model(self, run):
        with open(run.cache_folder / "worlds", "a") as notes:
            print(run.world_size, file=notes)

    @hookimpl
    def report_evidence(self, run):
        return {"worlds": (run.cache_folder / "worlds").read_text().split()}
"""

APART = """
stacks:
  apart: {set: {parallel: none}}
"""


def write(folder: Path, name: str, more: str = "") -> Path:
    """Write the scenario, on texts of unequal length."""
    text = folder / "text"
    if not text.exists():
        text.mkdir()
        for number in range(40):
            words = " ".join(f"word{number * i % 97}" for i in range(30 + number))
            (text / f"{number}.txt").write_text(words)
    scenario = folder / f"{name}.yaml"
    scenario.write_text(SCENARIO.replace("TEXT", str(text)) + more)
    return scenario


def run(
    scenario: Path,
    settings: dict[str, Any],
    *more: str,
    code: int = 0,
    site: Path | None = None,
) -> dict[str, Result]:
    """Run two ranks as a user does, and read back what was stored, by stack."""
    results = scenario.with_suffix("")
    pairs = [f"{key}={str(value).lower()}" for key, value in settings.items()]
    words = [word for pair in ("resources.devices=2", *pairs) for word in ("--set", pair)]
    variables = {"ACCEL_BENCH_CACHE": str(results.with_suffix(".cache"))}
    if site:
        variables["PYTHONPATH"] = str(site)
    with forking(results.with_suffix(".launcher")) as forked:
        arguments = ("run", str(scenario), "--quiet", "--oversubscribe", *words, *more, *forked)
        done = call(*arguments, "--results", str(results), folder=scenario.parent, **variables)
    assert done.code == code, done.out + done.err
    with open_store(results, write=False) as store:
        return {result.experiment.stack.name: result for result in store.results()}


def first_steps(result: Result, rank: int = 0) -> tuple[Sample, ...]:
    """Return as many steps as every window has: one that was disturbed is measured again."""
    window = result.ranks[rank].window
    assert window is not None, result.reasons
    return (*window.warmup, *window.discarded, *window.samples)[:5]


def is_padded(steps: tuple[Sample, ...]) -> bool:
    """Whether tokens went through the model that are none."""
    return any(step.real_tokens < step.processed_tokens for step in steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def one(folder: Path) -> Result:
    """One process, which is this one, with padded batches."""
    (result,) = run_scenario(write(folder, "one"), settings=PADDED).values()
    return result


@pytest.fixture(scope="module")
def engines(folder: Path) -> dict[str, Result]:
    """Two ranks of both engines, with padded batches and accumulation; one after a rehearsal."""
    site = folder / "site"
    site.mkdir()
    install(site, "accel-bench-rehearsing", {"rehearsing": "Rehearsing"}, REHEARSING)
    settings = {"train.gradient_accumulation": 2, "resources.backend": "gloo", **PADDED}
    return run(write(folder, "engines", BOTH_ENGINES), settings, site=site)


@pytest.fixture(scope="module")
def two(engines: dict[str, Result]) -> Result:
    return engines["torch"]


def assert_same_work(one: Result, two: Result) -> None:
    """Check that two ranks have the losses and the tokens of one process."""
    alone, together = run_throughput(one), run_throughput(two)
    assert alone is not None and together is not None
    assert len(alone.losses) == 5
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    assert together.real_tokens == alone.real_tokens
    assert together.tokens_per_second_per_device == pytest.approx(together.tokens_per_second / 2)


def test_padded_batches_and_accumulation_give_the_losses_and_tokens_of_one_process(
    one: Result, two: Result
) -> None:
    counted = token_summary(one)
    assert counted is not None
    assert counted.total_global.processed > counted.total_global.real
    assert_same_work(one, two)


@pytest.mark.release
def test_packed_batches_give_the_losses_and_tokens_of_one_process(folder: Path) -> None:
    (one,) = run_scenario(write(folder, "one-packed")).values()
    (two,) = run(write(folder, "two-packed"), {}).values()
    assert_same_work(one, two)
    alone, together = run_throughput(one), run_throughput(two)
    assert alone is not None and together is not None
    assert together.step_tokens == alone.step_tokens


def test_two_ranks_of_both_engines_evaluate_what_one_process_does(
    one: Result, engines: dict[str, Result]
) -> None:
    losses = validation_losses(one)
    assert len(losses) == 2
    for result in engines.values():
        assert validation_losses(result)[0] == pytest.approx(losses[0], rel=1e-6)


def test_both_ranks_wrote_their_samples_and_say_what_they_used(two: Result) -> None:
    assert two.status is Status.OK
    assert [rank.rank for rank in two.ranks] == [0, 1]
    for rank in two.ranks:
        assert rank.window is not None
        assert len(rank.window.samples) == 4
        assert rank.effective.strategy == "DistributedDataParallel"
        assert rank.effective.world_size == 2
        assert rank.effective.backend == "gloo"
    assert {rank.device.index for rank in two.ranks} == {0, 1}


def test_the_replicas_agree_after_the_window(two: Result) -> None:
    shown = two.ranks[0].evidence["ddp"]
    assert shown["world_size"] == 2
    assert shown["replica_difference"] == 0


def test_a_rehearsal_is_one_process_and_shares_its_work_with_nobody(two: Result) -> None:
    assert two.ranks[0].evidence["rehearsing"] == {"worlds": ["1", "2", "2"]}


@pytest.mark.release
def test_a_model_that_no_plugin_parallelizes_is_invalid(folder: Path) -> None:
    (apart,) = run(write(folder, "two", APART), {}, code=1).values()
    assert apart.status is Status.INVALID
    assert "nothing joins the gradients of 2 processes" in " ".join(apart.reasons)


def test_two_ranks_of_trainer_do_what_two_ranks_of_the_plain_loop_do(
    folder: Path, engines: dict[str, Result]
) -> None:
    assert set(engines) == set(ENGINES)
    names = {path.name.partition(".")[0].partition("-")[0] for path in folder.iterdir()}
    assert names <= {"engines", "one", "site", "text", "two"}, "something else was written"
    for result in engines.values():
        assert result.status.completed, result.reasons
        assert [rank.effective.strategy for rank in result.ranks] == [
            "DistributedDataParallel",
            "DistributedDataParallel",
        ]
        for rank in result.ranks:
            assert rank.effective.world_size == 2
            assert rank.effective.threads == 1
            assert rank.effective.nested_wrapping == ()
            assert rank.effective.synchronized_buffer_bytes == 0
        assert result.ranks[0].evidence["ddp"]["replica_difference"] == 0
    for number in range(2):
        ours, theirs = (first_steps(engines[name], number) for name in ENGINES)
        assert len(theirs) == 5
        assert figures(ours) == figures(theirs)
        assert len({step.loss for step in theirs}) == 5
        losses = [step.loss for step in theirs]
        assert [step.loss for step in ours] == pytest.approx(losses, rel=1e-5)
        assert is_padded(theirs)
        plain, trainer = (engines[name].ranks[number] for name in ENGINES)
        assert trainer.evidence["hf-trainer"]["wrapped_model"] == "DistributedDataParallel"
        assert plain.phases is not None and trainer.phases is not None
        assert set(trainer.phases.seconds) == set(plain.phases.seconds)


def figures(samples: tuple[Sample, ...]) -> list[tuple[int, int, int, int]]:
    """What each step has counted."""
    return [
        (step.sequences, step.processed_tokens, step.real_tokens, step.supervised_tokens)
        for step in samples
    ]
