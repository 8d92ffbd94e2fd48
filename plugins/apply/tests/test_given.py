"""A module of one's own: what the plan is told of it, what is refused, and its state afterwards."""

from __future__ import annotations

import copy
import pickle
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_apply import given
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import accel_bench
from accel_bench.errors import AccelBenchError, InvalidRunError, ScenarioError
from accel_bench.modeling.checkpointing import enable_gradient_checkpointing

from .scripts import small_llama, tiny

pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]

IDS = torch.arange(1, 17)[None]


def test_the_attention_that_a_stack_sets_is_the_modules_until_it_is_closed() -> None:
    model = small_llama()
    with accel_bench.accelerate(model, {"set": {"model.attention": "eager"}}) as accelerated:
        assert accelerated.effective.attention == "eager"
        assert accelerated.outside == ()
    assert model.config._attn_implementation == "sdpa"
    scenario = tiny({}, model={"attention": "eager"})
    with accel_bench.accelerate(model, scenario=scenario) as accelerated:
        assert accelerated.effective.attention == "eager"


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"model.dtype": "bfloat16"}, "give dtype='bfloat16'"),
        ({"model.overrides": {"num_hidden_layers": 1}}, "give its directory or hub id"),
    ],
)
def test_a_stack_that_sets_what_a_module_is_made_with_is_refused(
    settings: dict[str, Any], way: str
) -> None:
    with pytest.raises(ScenarioError, match=f"a module that is made already: {way}"):
        accel_bench.accelerate(small_llama(), {"set": settings})


def test_a_dtype_of_the_scenario_that_the_module_lacks_is_a_warning() -> None:
    scenario = tiny({}, model={"dtype": "bfloat16"})
    with pytest.warns(UserWarning, match="says model.dtype bfloat16, .* is in float32; dtype="):
        accel_bench.accelerate(small_llama(), scenario=scenario).close()
    with accel_bench.accelerate(small_llama(), scenario=scenario, dtype="bfloat16") as accelerated:
        assert accelerated.notices == ()


@pytest.mark.parametrize(
    ("stack", "reason"),
    [
        ("paddingfree", "no stack or plugin is called"),
        pytest.param("hf-trainer", "drives the optimizer steps itself", marks=pytest.mark.box),
        ({"set": {"model.attention": "flash_attention_9"}}, "attention"),
    ],
)
def test_a_refused_call_leaves_the_module_in_its_dtype(stack: Any, reason: str) -> None:
    model = small_llama()
    with pytest.raises(AccelBenchError, match=reason):
        accel_bench.accelerate(model, stack, dtype="bfloat16")
    assert model.dtype == torch.float32
    with accel_bench.accelerate(model, dtype=torch.bfloat16) as accelerated:  # type: ignore[arg-type]
        assert accelerated.experiment.scenario.model.dtype == "bfloat16"
        assert model.dtype == torch.bfloat16


def test_a_module_that_is_converted_is_as_one_that_is_loaded_in_the_dtype(tmp_path: Any) -> None:
    model = small_llama()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, dtype="bfloat16")
    accel_bench.accelerate(model, dtype="bfloat16").close()
    for found, wanted in zip(model.buffers(), loaded.buffers(), strict=True):
        assert found.dtype == wanted.dtype == torch.float32
        assert torch.equal(found, wanted)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": "bf16"}, "no model is trained in dtype 'bf16'"),
        ({"dtype": "int8"}, "no model is trained in dtype 'int8'"),
        ({"device": "gpu"}, "there is no device 'gpu'"),
        ({"arguments": {"learning_rate": 1e-3}}, "arguments are TrainingArguments of transformers"),
    ],
)
def test_arguments_that_lead_nowhere_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        accel_bench.accelerate(small_llama(), **changed)


@pytest.mark.box
def test_a_wrapped_or_compiled_module_is_refused_with_the_way_out() -> None:
    in_place = small_llama()
    in_place.model.layers[1].compile(backend="eager")
    for model, reason in (
        (
            torch.nn.DataParallel(small_llama()),
            r"wrapped already \(DataParallel\): give",
        ),
        (torch.compile(small_llama(), backend="eager"), "is compiled already"),
        (in_place, "is compiled already"),
    ):
        with pytest.raises(ScenarioError, match=reason):
            accel_bench.accelerate(model, "activation-checkpointing-every-2")


def test_a_module_with_weights_that_are_not_loaded_is_refused() -> None:
    model = small_llama()
    model.lm_head.to("meta")
    with pytest.raises(ScenarioError, match="has no weights to train"):
        accel_bench.accelerate(model)


@pytest.mark.box
@pytest.mark.parametrize("stack", [None, "activation-checkpointing-every-2"])
def test_modes_and_checkpointing_of_a_module_are_its_own_again(stack: str | None) -> None:
    model = small_llama().eval()
    model.model.norm.train()
    enable_gradient_checkpointing(model)
    functions = [one._gradient_checkpointing_func for one in model.model.layers]
    with accel_bench.accelerate(model, stack) as accelerated:
        assert model.training and model.model.layers[0].mlp.training
        assert accelerated.recomputes is (stack is not None)
    assert not model.training and model.model.norm.training
    assert all(layer.gradient_checkpointing for layer in model.model.layers)
    assert [one._gradient_checkpointing_func for one in model.model.layers] == functions


@pytest.mark.parametrize("had", [False, True])
def test_hooks_of_checkpointing_are_gone_from_a_module_that_had_none(had: bool) -> None:
    model = small_llama()
    if had:
        model.enable_input_require_grads()
    hooks = list(model.model.embed_tokens._forward_hooks)
    with accel_bench.accelerate(model, {"set": {"train.gradient_checkpointing": True}}):
        assert model.model.embed_tokens._forward_hooks
    assert list(model.model.embed_tokens._forward_hooks) == hooks
    assert had or pickle.dumps(model)
    model.disable_input_require_grads()
    assert not model.model.embed_tokens._forward_hooks


def test_checkpointing_that_a_module_has_is_no_difference(recwarn: Any) -> None:
    model = small_llama()
    enable_gradient_checkpointing(model)
    recwarn.clear()
    with accel_bench.accelerate(model) as accelerated:
        optimizer = accelerated.optimizer()
        accelerated.model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        assert accelerated.check().gradient_checkpointing
    assert [str(one.message) for one in recwarn if "checkpointing is" in str(one.message)] == []


def test_a_model_that_is_loaded_keeps_the_processs_precision_of_matmuls(tmp_path: Any) -> None:
    small_llama().save_pretrained(tmp_path)
    torch.set_float32_matmul_precision("high")
    try:
        with accel_bench.accelerate(str(tmp_path)) as accelerated:
            assert torch.get_float32_matmul_precision() == "high"
            assert accelerated.experiment.scenario.train.matmul_precision == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_key_that_a_stack_takes_back_is_named() -> None:
    scenario = tiny(
        {"plain": {"set": {"train.max_grad_norm": None, "train.precision": "as-is"}}},
        train={"max_grad_norm": 1.0, "precision": "bf16-autocast"},
    )
    with accel_bench.accelerate(small_llama(), "plain", scenario=scenario) as accelerated:
        found = [str(part) for part in accelerated.outside]
    assert "train.max_grad_norm = null (the stack): leave it out" in found
    assert any(one.startswith("train.precision = as-is (the stack)") for one in found)


def test_what_a_scenario_says_beside_the_training_is_named(monkeypatch: Any) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    variables = {"environment": {"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}}
    with accel_bench.accelerate(small_llama(), scenario={**tiny({}), **variables}) as accelerated:
        found = {part.name: part.value for part in accelerated.outside}
    assert found["data.sequence_length"] == 32 and found["resources.threads"] == 1
    assert found["environment.NCCL_DEBUG"] == "WARN"
    assert "environment.NCCL_ALGO" not in found


def test_a_size_that_is_auto_is_open() -> None:
    auto = {"train": {"micro_batch_size": "auto"}, "data": {"sequence_length": "auto"}}
    with pytest.warns(UserWarning, match="auto is worked out before round 1") as warned:
        with accel_bench.accelerate(small_llama(), scenario=tiny({}, **auto)) as accelerated:
            names = {part.name for part in accelerated.outside}
    assert len(warned) == 2 and "train.learning_rate" in names
    assert not names & {"train.micro_batch_size", "data.sequence_length"}


def test_a_module_goes_where_trainer_moves_it() -> None:
    arguments = SimpleNamespace(device=torch.device("cuda", 1), place_model_on_device=None)
    model = small_llama()
    assert given.device_of_trainer(model, arguments) == "cuda:1"
    for changes in ({"fsdp": ["full_shard"]}, {"place_model_on_device": False}):
        left = SimpleNamespace(**{**vars(arguments), **changes})
        assert given.device_of_trainer(model, left) is None
    assert given.device_of_trainer(model, None) is None
    model.hf_device_map = {"": 0}
    assert given.device_of_trainer(model, arguments) is None


def test_a_sample_longer_than_the_stack_was_made_for_is_refused() -> None:
    long = [list(range(1, 41))]
    shorter = {"data.sequence_length": 32}
    with accel_bench.accelerate(small_llama(), "padding-free", overrides=shorter) as accelerated:
        with pytest.raises(ScenarioError, match=r"has 40 tokens, .* made for 32 at most: cut"):
            accelerated.collate(long)
        with pytest.raises(ScenarioError, match=r"'data.sequence_length': 40"):
            next(accelerated.batches(long))
    with accel_bench.accelerate(small_llama(), overrides=shorter) as accelerated:
        assert accelerated.collate(long)["input_ids"].shape == (1, 40)


def test_a_step_that_a_gradient_scaler_skips_is_no_first_step() -> None:
    with accel_bench.accelerate(small_llama()) as accelerated:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-100)
        optimizer = torch.optim.AdamW(accelerated.model.parameters())
        for step in range(2):
            scaler.scale(accelerated.model(input_ids=IDS, labels=IDS).loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            assert accelerated.stepped is bool(step)
            if not step:
                with pytest.raises(InvalidRunError, match="no optimizer took a step"):
                    accelerated.check()
        assert accelerated.check().optimizer == "AdamW"


def test_a_step_with_learning_rate_0_is_no_first_step() -> None:
    with accel_bench.accelerate(small_llama()) as accelerated:
        probe_head = torch.nn.Linear(64, 2)
        foreign = torch.optim.SGD(probe_head.parameters(), lr=0.1)
        optimizer = torch.optim.AdamW(accelerated.model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
        for step in range(2):
            output = accelerated.model(input_ids=IDS, labels=IDS)
            probe_head(output.logits.detach()).sum().backward()
            foreign.step()
            output.loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            assert (accelerated.stepped, accelerated.idle) == (bool(step), not step)
            if not step:
                with pytest.raises(InvalidRunError, match="a learning rate other than 0"):
                    accelerated.check()
        assert accelerated.check().optimizer == "AdamW"


def test_another_stack_waits_until_the_changes_of_a_closing_one_are_undone() -> None:
    accelerated, seen = accel_bench.accelerate(small_llama(), "padding-free"), []
    before, undoing, go_on = dict(ALL_ATTENTION_FUNCTIONS._local_mapping), *events(2)

    def undo_slowly() -> None:
        undoing.set()
        assert go_on.wait(60)

    def accelerate_another() -> None:
        undoing.wait(60)
        with accel_bench.accelerate(small_llama(), "padding-free"):
            seen.append(dict(ALL_ATTENTION_FUNCTIONS._local_mapping) != before)

    accelerated._run.on_close(undo_slowly)
    threads = [threading.Thread(target=accelerated.close) for _ in range(2)]
    threads.append(threading.Thread(target=accelerate_another))
    for one in threads:
        one.start()
    undoing.wait(60)
    threads[-1].join(0.5)
    assert seen == []
    go_on.set()
    for one in threads:
        one.join(60)
    assert seen == [True]
    accel_bench.accelerate(small_llama()).close()


def events(number: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(number)]


STACKS = (
    None,
    "padding-free",
    "activation-checkpointing",
    "activation-checkpointing-selective",
    "optimizer-fused",
    [{"use": "torch-compile", "backend": "aot_eager"}],
    [{"use": "torch-compile", "backend": "aot_eager", "scope": "model"}],
)
"""Stacks on a CPU that change the model in place."""


@pytest.mark.box
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_what_a_stack_trains_is_saved_as_it_is_loaded(stack: Any, tmp_path: Any) -> None:
    model = small_llama()
    names = set(model.state_dict())
    with accel_bench.accelerate(model, stack) as accelerated:
        optimizer = accelerated.optimizer()
        accelerated.model(**accelerated.collate([[1, 2, 3, 4], [5, 6, 7]])).loss.backward()
        optimizer.step()
        accelerated.model.save_pretrained(tmp_path / "active")
        assert set(accelerated.model.state_dict()) == names
    model.save_pretrained(tmp_path / "closed")
    for folder in ("active", "closed"):
        loaded = type(model).from_pretrained(tmp_path / folder)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.box
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_other_models_evaluation_and_generation_are_as_without_the_stack(stack: Any) -> None:
    model, other = small_llama(), small_llama(hidden_size=48).eval()
    twin = copy.deepcopy(model).eval()
    mask = torch.ones_like(IDS)
    mask[:, :5] = 0
    inputs = {"input_ids": IDS, "attention_mask": mask}
    generating = {**inputs, "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    expected = [one(**inputs).logits for one in (twin, other)], twin.generate(**generating)
    with accel_bench.accelerate(model, stack) as accelerated, torch.no_grad():
        accelerated.model.eval()
        found = [one(**inputs).logits for one in (accelerated.model, other)]
        written = accelerated.model.generate(**generating)
    for one, wanted in zip(found, expected[0], strict=True):
        assert torch.allclose(one, wanted, atol=1e-5)
    assert torch.equal(written, expected[1])


def test_overrides_of_another_kind_are_refused_by_name() -> None:
    with pytest.raises(ScenarioError, match="overrides is a mapping of dotted keys"):
        accel_bench.accelerate(small_llama(), overrides=["train.seed=1"])  # type: ignore[arg-type]
