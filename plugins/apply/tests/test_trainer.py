"""Trainer trains with a stack through its callback, and is refused where it leaves a part out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accel_bench_apply import AccelerateCallback
from transformers import Trainer, TrainingArguments

import accel_bench
from accel_bench.errors import AccelBenchError, InvalidRunError, PluginError, ScenarioError

from .scripts import small_llama, tiny

SAMPLES = [{"input_ids": list(range(1, 5 + 3 * number % 11))} for number in range(16)]

CLOSE = 1e-6
"""Relative distance of losses whose sums have another order."""


def padded(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return a micro-batch with padding, as a script's own collator makes it."""
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(rows, batch_first=True),
        "attention_mask": pad([torch.ones_like(row) for row in rows], batch_first=True),
        "labels": pad(rows, batch_first=True, padding_value=-100),
    }


@pytest.fixture
def losses(tmp_path: Path) -> Any:
    """Return `losses(model, arguments, **of_trainer)`: a training's losses by step."""

    def train(model: Any, arguments: TrainingArguments, **others: Any) -> list[float]:
        settings = {"data_collator": padded, **others}
        trainer = Trainer(model=model, args=arguments, train_dataset=SAMPLES, **settings)
        trainer.train()
        return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    return train


@pytest.fixture
def arguments(tmp_path: Path) -> Any:
    """Return `arguments(**changes)`: those of three steps of Trainer on the CPU."""

    def make(**changes: Any) -> TrainingArguments:
        settings = {"max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1}
        quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True}
        return TrainingArguments(str(tmp_path), use_cpu=True, **{**settings, **quiet, **changes})

    return make


def test_a_callback_accelerates_the_model_in_place_and_undoes_it(
    losses: Any, arguments: Any
) -> None:
    plain = losses(small_llama(), arguments())
    model, callback = small_llama(), AccelerateCallback("activation-checkpointing")
    assert losses(model, arguments(), callbacks=[callback]) == plain
    assert callback.accelerated.closed
    assert callback.accelerated.experiment.scenario.train.micro_batch_size == 4
    assert not model.model.layers[0].gradient_checkpointing


def test_batches_and_optimizer_of_a_stack_are_given_to_trainer(losses: Any, arguments: Any) -> None:
    plain = losses(small_llama(), arguments())
    stack = {"set": {"optimizer.fused": True}, "use": ["padding-free"]}
    with accel_bench.accelerate(small_llama(), stack, arguments=arguments()) as accelerated:
        own = {
            "data_collator": accelerated.collate,
            "optimizers": (accelerated.optimizer(), None),
            "callbacks": [accelerated.trainer_callback()],
        }
        found = losses(accelerated.model, arguments(), **own)
        assert accelerated.effective.padding_free
        assert accelerated.evidence()["adamw"]["fused"]
    # Trainer's own AdamW has no weight decay.
    assert found[0] == pytest.approx(plain[0], rel=CLOSE)
    assert found == pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize(
    ("stack", "changes", "reason"),
    [
        ("padding-free", {}, "batches of its own: give data_collator=accelerated.collate"),
        ("optimizer-fused", {}, r"give optimizers=\(accelerated.optimizer\(\), None\)"),
        (
            {"set": {"train.precision": "bf16-autocast"}},
            {},
            "train.precision is bf16-autocast by the stack, and Trainer's bf16, fp16 makes it as",
        ),
        (
            {"set": {"train.micro_batch_size": 2}},
            {},
            "micro_batch_size is 2 by the stack, .* per_device_train_batch_size makes it 4",
        ),
        (
            "activation-checkpointing",
            {"activation_checkpointing": True},
            "Trainer's activation_checkpointing would do it again; set it to False",
        ),
    ],
)
def test_a_trainer_that_leaves_a_part_out_is_refused(
    stack: Any, changes: dict[str, bool], reason: str, losses: Any, arguments: Any
) -> None:
    callback = AccelerateCallback(stack)
    with pytest.raises(ScenarioError, match=reason):
        losses(small_llama(), arguments(**changes), callbacks=[callback])
    assert callback.accelerated.closed


def test_plugins_check_the_arguments_of_trainer(losses: Any, arguments: Any) -> None:
    with pytest.raises(PluginError, match="frees gradients before their norm is known"):
        accel_bench.accelerate(small_llama(), "optimizer-in-backward", arguments=arguments())
    clipped = arguments(max_grad_norm=0.0)
    with accel_bench.accelerate(small_llama(), "optimizer-in-backward", arguments=clipped) as one:
        own = {"optimizers": (one.optimizer(), None), "callbacks": [one.trainer_callback()]}
        assert len(losses(one.model, clipped, **own)) == 3


def test_an_adapter_needs_the_model_before_the_trainer(losses: Any, arguments: Any) -> None:
    adapted = {"adapter.use": "lora"}
    model = small_llama()
    with pytest.raises(ScenarioError, match="makes another model of it, such as by an adapter"):
        callback = AccelerateCallback(None, overrides=adapted)
        losses(model, arguments(), callbacks=[callback])
    assert all(weight.requires_grad for weight in model.parameters())
    with accel_bench.accelerate(model, overrides=adapted) as accelerated:
        assert losses(accelerated.model, arguments(), callbacks=[accelerated.trainer_callback()])


def test_a_callback_that_is_added_too_late_says_so(arguments: Any) -> None:
    trainer = Trainer(small_llama(), arguments(), padded, train_dataset=SAMPLES)
    trainer.add_callback(AccelerateCallback("activation-checkpointing"))
    with pytest.raises(ScenarioError, match="not by `add_callback`"):
        trainer.train()


EAGER_GRAPHS = [{"use": "torch-compile", "backend": "aot_eager"}]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_checkpointing_of_trainer_is_its_own(losses: Any, arguments: Any) -> None:
    plain = losses(small_llama(), arguments())
    callback = AccelerateCallback(EAGER_GRAPHS)
    found = losses(small_llama(), arguments(activation_checkpointing=True), callbacks=[callback])
    assert found == pytest.approx(plain, rel=CLOSE)
    assert callback.accelerated.closed


@pytest.mark.box
def test_checkpointing_of_trainer_that_replaces_the_stacks_is_refused(
    losses: Any, arguments: Any
) -> None:
    callback = AccelerateCallback("activation-checkpointing-selective")
    with pytest.raises(ScenarioError, match="would do it again; set it to False"):
        losses(small_llama(), arguments(activation_checkpointing=True), callbacks=[callback])


def test_steps_that_a_gradient_scaler_skips_are_waited_for(arguments: Any) -> None:
    callback = AccelerateCallback("activation-checkpointing")
    given = {"train_dataset": SAMPLES, "data_collator": padded, "callbacks": [callback]}
    trainer = Trainer(small_llama(), arguments(max_steps=3), **given)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
    trainer.accelerator.scaler = scaler
    trainer.train()
    assert callback.accelerated.closed
    assert scaler.get_scale() < 2.0**127  # a step was skipped


def test_sizes_that_are_auto_are_those_of_trainer(losses: Any, arguments: Any) -> None:
    sizes = {"micro_batch_size": "auto", "global_batch_size": 8}
    scenario = tiny({}, train=sizes, data={"sequence_length": "auto"})
    given = arguments(gradient_accumulation_steps=2, learning_rate=1e-2)
    given.max_length = 64  # An argument of TRL.
    with accel_bench.accelerate(small_llama(), scenario=scenario, arguments=given) as accelerated:
        planned = accelerated.experiment.scenario
        assert (planned.train.micro_batch_size, planned.data.sequence_length) == (4, 64)
    callback = AccelerateCallback(None, scenario=scenario)
    assert len(losses(small_llama(), given, callbacks=[callback])) == 3


@pytest.mark.parametrize(("device", "asked"), [(None, "cuda:1"), ("cpu", "cpu")])
def test_a_model_is_accelerated_where_trainer_will_place_it(
    device: str | None, asked: str, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop(*_: object, device: str | None, **__: object) -> None:
        raise Stopped(device)

    monkeypatch.setattr("accel_bench_apply.request.ask", stop)
    monkeypatch.setattr(TrainingArguments, "device", torch.device("cuda", 1))
    with pytest.raises(Stopped) as stopped:
        accel_bench.accelerate(small_llama(), arguments=arguments(), device=device)
    assert stopped.value.args == (asked,)


@pytest.mark.parametrize("own", [False, True])
def test_a_warm_up_that_starts_at_learning_rate_0_is_waited_for(
    own: bool, losses: Any, arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel_bench_apply.trainer_impl.PATIENCE", 1)
    slow = arguments(warmup_steps=2)
    if own:
        callback = AccelerateCallback("activation-checkpointing")
        assert len(losses(small_llama(), slow, callbacks=[callback])) == 3
    else:
        with accel_bench.accelerate(small_llama(), arguments=slow) as accelerated:
            losses(accelerated.model, slow, callbacks=[accelerated.trainer_callback()])
            assert accelerated.stepped and not accelerated.idle


def test_a_trainer_whose_learning_rate_is_always_0_is_warned(losses: Any, arguments: Any) -> None:
    callback = AccelerateCallback("activation-checkpointing")
    with pytest.warns(UserWarning, match="all optimizer steps had learning rate 0"):
        losses(small_llama(), arguments(learning_rate=0.0), callbacks=[callback])


class WithoutGradient(Trainer):
    """Trainer whose loss leaves out the second block's MLP."""

    def compute_loss(self, model: Any, inputs: Any, **others: Any) -> Any:
        mlp = model.model.layers[1].mlp
        forward = type(mlp).forward
        mlp.forward = lambda hidden: forward(mlp, hidden).detach()
        return super().compute_loss(model, inputs, **others)


class Evaluated(Trainer):
    """Trainer that trains in evaluation mode."""

    def compute_loss(self, model: Any, inputs: Any, **others: Any) -> Any:
        return super().compute_loss(model.eval(), inputs, **others)


def test_a_training_that_its_check_ends_leaves_no_stack_open(arguments: Any) -> None:
    callback = AccelerateCallback("activation-checkpointing")
    given = {"train_dataset": SAMPLES, "data_collator": padded, "callbacks": [callback]}
    with pytest.raises(InvalidRunError, match="the model is not in training mode"):
        Evaluated(small_llama(), arguments(), **given).train()
    assert callback.accelerated.closed


def test_a_stack_that_a_failed_training_leaves_open_is_closed_by_its_callback(
    arguments: Any,
) -> None:
    callback = AccelerateCallback("activation-checkpointing")
    given = {"train_dataset": SAMPLES, "data_collator": padded, "callbacks": [callback]}
    with pytest.raises(InvalidRunError, match="the gradient is cut"):
        WithoutGradient(small_llama(), arguments(), **given).train()
    with pytest.raises(AccelBenchError, match="a callback's is its `accelerated`"):
        accel_bench.accelerate(small_llama())
    callback.accelerated.close()
    accel_bench.accelerate(small_llama()).close()


def test_a_setting_that_no_argument_shows_is_a_warning(losses: Any, arguments: Any) -> None:
    callback = AccelerateCallback({"set": {"data.sequence_length": 64}})
    with pytest.warns(UserWarning, match="do not show data.sequence_length = 64"):
        losses(small_llama(), arguments(), callbacks=[callback])


@pytest.mark.parametrize(
    "options",
    [
        {"stack": {"set": {"data.sequence_length": 64}}},
        {"stack": None, "scenario": tiny({}, data={"sequence_length": 64})},
    ],
)
def test_rows_of_another_length_are_refused(options: Any, losses: Any, arguments: Any) -> None:
    longer = arguments()
    longer.max_length = 128  # An argument of TRL.
    with pytest.raises(ScenarioError, match=r"length is 64 by the s.*max_length makes it 128"):
        losses(small_llama(), longer, callbacks=[AccelerateCallback(**options)])


def test_clipping_that_a_stack_takes_back_is_refused_with_trainers(
    losses: Any, arguments: Any
) -> None:
    callback = AccelerateCallback({"set": {"train.max_grad_norm": None}})
    with pytest.raises(ScenarioError, match=r"max_grad_norm is None by the stack, .* makes it 1.0"):
        losses(small_llama(), arguments(), callbacks=[callback])
