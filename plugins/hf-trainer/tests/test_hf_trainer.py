"""The HF Trainer engine against the default engine: training, counts, and disabled features."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from accel_bench_hf_trainer.engine import HFTrainer, HFTrainerOptions
from accel_bench_hf_trainer.impl import HFTrainerEngine
from accel_bench_torch.engine_impl import TorchEngine
from imported_modules import imported
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import TrainingArguments

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import PluginError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import activate
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.testing import evidence_of

MakeRun = Callable[..., Run]

STEPS = 3

ENGINES: dict[str, Callable[[Run], Any]] = {
    "torch": TorchEngine,
    "hf-trainer": lambda run: HFTrainerEngine(run, HFTrainerOptions()),
}


class Laps:
    """A stopwatch that records its calls, and stops after some steps."""

    def __init__(self, steps: int = STEPS, at_lap: Callable[[], None] = lambda: None) -> None:
        self.running = True
        self.losses: list[float] = []
        self.batches: list[Sequence[Batch]] = []
        self.marks: list[str] = []
        self._steps = steps
        self._at_lap = at_lap

    def mark(self, phase: str) -> None:
        self.marks.append(phase)

    def lap(self, batches: Sequence[Batch], loss: Any) -> None:
        assert not loss.requires_grad
        assert loss.shape == ()
        self._at_lap()
        self.marks.append("lap")
        self.batches.append(batches)
        self.losses.append(loss)
        self.running = len(self.losses) < self._steps


class Tiny(torch.nn.Module):
    """A model with dropout and transformers' call signature: it returns an object with a loss."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 3)
        self.dropout = torch.nn.Dropout(0.2)
        self.dtypes: list[torch.dtype] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int) -> Any:
        logits = self.layer(self.dropout(x))
        self.dtypes.append(logits.dtype)
        total = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
        return type("Output", (), {"loss": total / num_items_in_batch})

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> None:
        raise AssertionError("core has enabled gradient checkpointing; once is enough")

    activation_checkpointing_enable = gradient_checkpointing_enable


class SeenOperations(TorchDispatchMode):
    """Dispatch mode that records each operation with the number of ended laps."""

    def __init__(self) -> None:
        super().__init__()
        self.laps = 0
        self.seen: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((self.laps, func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))

    def between_laps(self) -> list[str]:
        """Operations of the steps after the first, up to the last lap."""
        return [name for laps, name in self.seen if 0 < laps < self.laps]


def batches(taken: list[int], accumulation: int) -> Iterator[Batch]:
    """Endless micro-batches of two samples; `taken` gets a number for each."""
    generator = torch.Generator().manual_seed(1)
    while True:
        taken.append(len(taken))
        x = torch.randn(2, 4, generator=generator)
        labels = torch.randint(0, 3, (2,), generator=generator)
        counts = TokenCounts(2, 2, 2)
        yield Batch({"x": x, "labels": labels}, 2, counts, 2 * accumulation)


def build(make_run: MakeRun, engine: str = "hf-trainer", **train: Any) -> tuple[Any, Run]:
    """An engine on a new Tiny, with the run that it trains."""
    accumulation = train.get("gradient_accumulation", 1)
    run = make_run(
        train={"micro_batch_size": 2, "gradient_accumulation": 1, **train},
        resources={"device": "cpu"},
    )
    run.model = run.unwrapped_model = Tiny()
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
    run.dataset = []
    run.batches = batches(run.dataset, accumulation)
    torch.manual_seed(5)
    return ENGINES[engine](run), run


@pytest.mark.parametrize(
    "train",
    [{}, {"gradient_accumulation": 2}, {"max_grad_norm": 0.05}, {"precision": "bf16-autocast"}],
    ids=str,
)
def test_losses_weights_and_batches_are_those_of_the_plain_loop(
    make_run: MakeRun, train: dict[str, Any]
) -> None:
    laps = {}
    models = {}
    for name in ENGINES:
        engine, run = build(make_run, name, **train)
        laps[name], models[name] = Laps(), run.model
        engine.run(laps[name])
        assert len(run.dataset) == STEPS * train.get("gradient_accumulation", 1)
    ours, theirs = laps["hf-trainer"], laps["torch"]
    assert [float(x) for x in ours.losses] == pytest.approx([float(x) for x in theirs.losses])
    assert ours.marks == theirs.marks
    for step, same in zip(ours.batches, theirs.batches, strict=True):
        assert len(step) == len(same)
        for one, other in zip(step, same, strict=True):
            assert torch.equal(one.inputs["x"], other.inputs["x"])
    for one, other in zip(*(models[name].parameters() for name in ENGINES), strict=True):
        torch.testing.assert_close(one, other)


def test_a_step_is_marked_in_its_phases_and_then_lapped(make_run: MakeRun) -> None:
    engine, _ = build(make_run, gradient_accumulation=2)
    laps = Laps(1)
    engine.run(laps)
    assert laps.marks == ["data", "forward", "backward"] * 2 + ["optimizer", "lap"]


def test_an_engine_can_be_run_again_and_goes_on(make_run: MakeRun) -> None:
    whole, parts = Laps(4), [Laps(2), Laps(2)]
    build(make_run, precision="bf16-autocast")[0].run(whole)
    engine, _ = build(make_run, precision="bf16-autocast")
    for part in parts:
        engine.run(part)
    assert [*parts[0].losses, *parts[1].losses] == whole.losses


def test_a_stopwatch_that_does_not_run_gets_no_step(make_run: MakeRun) -> None:
    engine, run = build(make_run)
    laps = Laps()
    laps.running = False
    engine.run(laps)
    assert laps.losses == [] and run.dataset == []


def test_bf16_autocast_computes_matmuls_in_bf16(make_run: MakeRun) -> None:
    engine, run = build(make_run, precision="bf16-autocast")
    engine.run(Laps(1))
    assert run.model.dtypes == [torch.bfloat16]
    assert run.model.layer.weight.dtype == torch.float32


def test_fp16_on_a_cpu_is_refused_where_trainer_alone_would_compute_in_float32(
    make_run: MakeRun, tmp_path: Path
) -> None:
    accepted = TrainingArguments(str(tmp_path), fp16=True, use_cpu=True, report_to="none")
    assert accepted.fp16
    with pytest.raises(ScenarioError, match="fp16-autocast needs a CUDA device"):
        build(make_run, precision="fp16-autocast")


def test_gradient_checkpointing_is_not_enabled_a_second_time(make_run: MakeRun) -> None:
    engine, _ = build(make_run, gradient_checkpointing=True)
    laps = Laps()
    engine.run(laps)
    assert len(laps.losses) == STEPS


@pytest.mark.parametrize("accumulation", [1, 2])
def test_nothing_is_read_from_the_device_in_a_step(make_run: MakeRun, accumulation: int) -> None:
    engine, _ = build(make_run, gradient_accumulation=accumulation)
    with SeenOperations() as operations:

        def at_lap() -> None:
            operations.laps += 1

        engine.run(Laps(4, at_lap))
    assert "addmm" in operations.between_laps()
    assert "_local_scalar_dense" not in operations.between_laps()
    # Trainer reads its own sum of losses when all is over, so the count does see a reading.
    assert "_local_scalar_dense" in [name for _, name in operations.seen]


def test_a_gradient_norm_is_computed_only_to_clip(make_run: MakeRun) -> None:
    found = {}
    for norm in (None, 0.05):
        engine, _ = build(make_run, max_grad_norm=norm)
        with SeenOperations() as operations:
            engine.run(Laps(1))
        found[norm] = any("norm" in name for _, name in operations.seen)
    assert found == {None: False, 0.05: True}


def test_nothing_is_printed_and_no_file_is_left(
    make_run: MakeRun,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    engine, _ = build(make_run)
    engine.run(Laps())
    assert capfd.readouterr().out == ""
    assert [path.name for path in tmp_path.rglob("*")] == ["elsewhere"]


def test_seeds_threads_and_environment_are_as_core_has_set_them(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What another launcher, or accelerate's own, would have set.
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = torch.get_num_threads()
    _, run = build(make_run, "torch")
    random.seed(1)
    numpy.random.seed(1)
    before = (dict(os.environ), random.getstate(), numpy.random.get_state()[1].tolist())
    seeded = torch.get_rng_state()
    engine = HFTrainerEngine(run, HFTrainerOptions())
    assert (dict(os.environ), random.getstate()) == before[:2]
    assert numpy.random.get_state()[1].tolist() == before[2]
    assert torch.equal(torch.get_rng_state(), seeded)
    assert torch.get_num_threads() == threads
    engine.run(Laps(1))
    assert run.model.dtypes == [torch.float32]
    assert engine.evidence()["processes"] == 1


def test_the_evidence_says_what_trainer_made_of_the_run(make_run: MakeRun) -> None:
    plugin = HFTrainer(HFTrainerOptions(), "hf-trainer")
    _, run = build(make_run, "torch", precision="bf16-autocast")
    assert evidence_of(run) == {}
    plugin.build_engine(run).run(Laps())
    assert evidence_of(run) == {
        "steps": STEPS,
        "processes": 1,
        "wrapped_model": "Tiny",
        "mixed_precision": "bf16",
        "distributed_type": "NO",
        "schedule": "LambdaLR",
    }


def test_the_plugin_s_module_imports_nothing_heavy() -> None:
    program = "from accel_bench_hf_trainer.engine import HFTrainer"
    assert not imported(program, {"torch", "transformers", "accelerate"})


@pytest.mark.release
def test_trainer_is_imported_with_the_imports_and_not_by_the_plugin_s_module() -> None:
    """Else its time and memory would count as those of building the engine."""
    program = (
        "import sys\n"
        "from accel_bench_hf_trainer.engine import HFTrainer, HFTrainerOptions\n"
        "print(bool({'torch', 'transformers', 'accelerate'} & set(sys.modules)))\n"
        "HFTrainer(HFTrainerOptions()).prepare_process(None)\n"
        "print({'transformers.trainer', 'accelerate'} <= set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


def active(scenario: dict[str, Any], *uses: Any) -> ActivePlugins:
    """The plugins of a scenario, as a worker has them."""
    return activate(
        Scenario.model_validate_json(json.dumps(scenario)),
        Stack.model_validate_json(json.dumps({"name": "stack", "uses": uses})),
        allow_torch=True,
    )


RANKS = {"resources": {"device": "cpu", "devices": 2}}


@pytest.mark.parametrize("place", ["slot", "stack"])
def test_the_model_is_wrapped_by_trainer_alone(place: str, make_run: MakeRun) -> None:
    if place == "slot":
        plugins = active({"engine": "hf-trainer", **RANKS})
    else:
        plugins = active(RANKS, "hf-trainer")
    answering = plugins.answers("parallelize_model"), plugins.answers("build_engine")
    assert [member and member.name for member in answering] == ["hf-trainer", "hf-trainer"]
    _, run = build(make_run)
    assert plugins.call_one("parallelize_model", run=run) is run.model


def test_without_it_the_plugin_of_the_slot_wraps() -> None:
    member = active(RANKS).answers("parallelize_model")
    assert member is not None and member.name == "ddp"


def test_a_stack_that_wraps_by_itself_cannot_be_beside_it() -> None:
    with pytest.raises(PluginError, match="'ddp' and 'hf-trainer' both claim parallelize_model"):
        active({"engine": "hf-trainer", **RANKS}, "ddp")


@pytest.mark.parametrize(
    ("parallel", "reasons"),
    [
        ("ddp", []),
        ("none", []),
        ("shards", ["hf-trainer wraps the model itself: parallel: shards would do nothing"]),
        (
            {"use": "ddp", "bucket_cap_mb": 5},
            [
                "hf-trainer wraps the model itself: parallel.bucket_cap_mb would do nothing; "
                "the options ddp_... of hf-trainer are read"
            ],
        ),
    ],
    ids=str,
)
def test_a_wrapping_that_trainer_would_not_do_is_refused(
    make_run: MakeRun, parallel: Any, reasons: list[str]
) -> None:
    experiment = make_run(parallel=parallel, **RANKS).experiment
    plugin = HFTrainer(HFTrainerOptions(), "hf-trainer")
    assert list(plugin.check_scenario(experiment, read_machine())) == reasons
