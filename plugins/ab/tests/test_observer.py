"""The observer in real processes: trainings that mislead it, and its absence elsewhere."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from accel_bench_ab.launch import command_environment
from accel_bench_ab.record import Observed, observe

HERE = Path(__file__).parent


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command under the observer."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    environment = command_environment(environment, folder, folder / "no-page", observed=True)
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, cwd=folder
    )


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    """Observations of each attempt; all are processes forked from one."""
    folder = tmp_path_factory.mktemp("attempts")
    done = run(folder, sys.executable, str(HERE / "attempts.py"), str(folder))
    assert done.returncode == 0, done.stderr
    names = json.loads((folder / "names.json").read_text())
    killed = {name: 9 for name in names if name.startswith("killed")}
    assert {name: code for name, code in names.items() if code} == killed
    return {name: observe(folder / name) for name in names}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("plain", 5),
        ("two_losses_a_batch", 10),
        ("two_optimizers", 5),
        ("wrapped_step", 5),
        ("replaced_for_the_class", 5),
        ("closures", 5),
        ("in_backward", 5),
        ("optimizer_around_another", 5),
        ("compiled_step", 5),
        ("step_of_a_base_class", 5),
        ("scaled", 4),
        ("killed", 5),
    ],
)
def test_steps_are_counted(name: str, steps: int, attempts: dict[str, Observed]) -> None:
    assert len(attempts[name].steps) == steps
    assert attempts[name].unseen == {"tokens": "no DataLoader of torch was read"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("twice_a_batch", "took two steps without a backward pass between them"),
        ("optimizers_in_turns", "optimizers take turns"),
        ("replaced_step", "5 backward passes and no step of an optimizer of torch"),
        ("without_optimizer", "5 backward passes and no step of an optimizer of torch"),
        ("in_a_fork", "are not the ranks of one job"),
        ("no_room", "its record could not be written: File too large"),
    ],
)
def test_what_cannot_be_counted_is_not_seen(
    name: str, reason: str, attempts: dict[str, Observed]
) -> None:
    assert not attempts[name].steps
    assert reason in attempts[name].unseen["steps"]


def test_losses_are_those_before_a_scaler(attempts: dict[str, Observed]) -> None:
    scaled, plain = attempts["scaled"].steps, attempts["plain"].steps
    assert scaled[0].loss == plain[0].loss
    assert [step.passes for step in scaled] == [1, 1, 2, 1]  # The third was skipped.


def test_labels_without_a_name_are_counted(attempts: dict[str, Observed]) -> None:
    assert {step[1:4] for step in attempts["ids_and_labels"].steps} == {(8, 8, 5)}


def test_a_loss_of_two_devices_is_whole(attempts: dict[str, Observed]) -> None:
    whole = 2 * attempts["plain"].steps[0].loss
    losses = [step.loss for step in attempts["loss_of_two_devices"].steps]
    assert losses == pytest.approx([whole] * 5)


def test_the_loss_of_a_scaler_with_its_own_scale(attempts: dict[str, Observed]) -> None:
    scaled, plain = attempts["scaled_by_a_class_with_its_own_scale"], attempts["plain"]
    assert scaled.steps[0].loss == plain.steps[0].loss


def test_a_part_of_a_loss_is_none_though_the_process_is_killed(
    attempts: dict[str, Observed],
) -> None:
    losses = [step.loss for step in attempts["killed_after_a_loss_of_two_parts"].steps]
    assert [*map(math.isnan, losses)] == [False] * 9 + [True]


def test_the_update_is_that_of_all_steps(attempts: dict[str, Observed]) -> None:
    plain = attempts["plain"].ranks[0].facts
    assert {*plain["updates"]} == {"1", "2", "5"}
    assert {*plain["updates"]["5"]} == {"weight", "bias"}
    assert plain["learning_rates"] == {"0.1": 2}


@pytest.mark.parametrize("name", ["one_for_each_layer", "one_for_each_weight"])
def test_many_optimizers_have_the_update_of_one(name: str, attempts: dict[str, Observed]) -> None:
    one = attempts["one_for_all_layers"].ranks[0].facts["updates"]
    many = attempts[name].ranks[0].facts["updates"]
    assert {*many} == {"1", "2", "8", "10"}
    assert {*many["8"]} == {f"{n}.{kind}" for n in range(3) for kind in ("weight", "bias")}
    for step, tensors in one.items():
        for tensor, found in tensors.items():
            assert many[step][tensor]["change"] == pytest.approx(found["change"])


@pytest.mark.parametrize("name", ["evaluation_before_the_backward_pass", "cut_off_evaluation"])
def test_batches_of_an_evaluation_are_none_of_the_training(
    name: str, attempts: dict[str, Observed]
) -> None:
    assert attempts[name].unseen == {}
    assert [step.real for step in attempts[name].steps] == [16] * 5


@pytest.mark.parametrize(
    "name",
    [
        "a_look_at_one_batch",
        "cut_off_evaluation_with_gradients",
        "tried_again_with_smaller_batches",
        "a_step_before_the_training",
    ],
)
def test_each_step_has_the_tokens_of_its_own_batch(
    name: str, attempts: dict[str, Observed]
) -> None:
    assert attempts[name].unseen == {}
    assert [step.real for step in attempts[name].steps] == [8, 9, 10, 11, 12]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("evaluation_from_a_lasting_iterator", "more batches are read than reach a backward pass"),
        ("a_batch_thrown_away", "more batches are read than reach a backward pass"),
        (
            "a_batch_thrown_away_before_another_epoch",
            "more batches are read than reach a backward pass",
        ),
        ("a_loader_in_a_loader", "more batches are read than reach a backward pass"),
        ("two_loaders_a_step", "more batches are read than reach a backward pass"),
        ("images", "a backward pass was of no batch of tokens from a DataLoader"),
        ("ids_and_a_mask", "a backward pass was of no batch of tokens from a DataLoader"),
        ("two_texts", "a backward pass was of no batch of tokens from a DataLoader"),
        ("several_batches_in_one", "a backward pass was of no batch of tokens from a DataLoader"),
        ("batches_without_get", "AttributeError: 'Jagged' object has no attribute 'get'"),
    ],
)
def test_batches_that_are_not_those_of_the_steps_are_not_counted(
    name: str, reason: str, attempts: dict[str, Observed]
) -> None:
    assert attempts[name].unseen == {"tokens": reason}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("scaled_and_divided", "a scaled loss was changed before its backward pass"),
        ("scaled_together", "a scaled loss was changed before its backward pass"),
        ("failed_backward_pass", "a backward pass failed"),
        ("failed_last_pass", "a backward pass failed"),
        ("loss_of_two_parts", "a backward pass was of several tensors"),
        (
            "killed_with_losses_on_a_device",
            "the command was killed, with its losses on the device",
        ),
    ],
)
def test_no_step_has_a_loss_that_is_a_part_of_it_or_scaled(
    name: str, reason: str, attempts: dict[str, Observed]
) -> None:
    assert attempts[name].unseen["loss"] == reason
    assert all(math.isnan(step.loss) for step in attempts[name].steps)


@pytest.mark.parametrize(
    "name", ["best_weights_loaded", "averaged_weights_copied", "one_layer_changed"]
)
def test_weights_that_are_changed_after_the_last_step_are_no_update(
    name: str, attempts: dict[str, Observed]
) -> None:
    found = attempts[name]
    assert found.unseen["update"] == "weights were changed after the last step"
    assert str(len(found.steps)) not in found.ranks[0].facts["updates"]


OTHER_WEIGHTS = "the optimizer got other weights after its first step"


@pytest.mark.parametrize(
    ("name", "steps", "reason"),
    [
        ("a_layer_added_later", 20, OTHER_WEIGHTS),
        ("group_by_group", 5, OTHER_WEIGHTS),
        ("optimizers_of_a_shared_weight", 10, "optimizers share weights"),
    ],
)
def test_an_update_of_some_weights_is_none(
    name: str, steps: int, reason: str, attempts: dict[str, Observed]
) -> None:
    found = attempts[name]
    assert len(found.steps) == steps
    assert found.unseen["update"] == reason
    assert found.ranks[0].facts["updates"] == {}


def test_weights_that_are_freed_after_each_step_are_not_read(attempts: dict[str, Observed]) -> None:
    found = attempts["weights_freed_after_each_step"]
    assert len(found.steps) == 5
    assert "RuntimeError" in found.unseen["update"]


def test_the_update_of_a_training_that_diverged_is_not_finite(
    attempts: dict[str, Observed],
) -> None:
    assert attempts["diverged"].unseen["update"] == "the weights are not finite"
    assert {*attempts["diverged"].ranks[0].facts["updates"]} == {"1", "2", "5"}


def test_an_optimizer_around_another_has_its_weights_once(attempts: dict[str, Observed]) -> None:
    updates = attempts["optimizer_around_another"].ranks[0].facts["updates"]
    assert {*updates["5"]} == {"weight", "bias"}


def test_shards_of_weights_are_not_compared_with_weights(attempts: dict[str, Observed]) -> None:
    found = attempts["fully_sharded"]
    assert len(found.steps) == 10
    assert found.unseen["update"] == "the weights lie on several ranks"
    assert found.ranks[0].facts["updates"] == {}


def test_ranks_are_those_of_the_process_group(attempts: dict[str, Observed]) -> None:
    found = attempts["two_ranks_without_variables"]
    assert [rank.facts["rank"] for rank in found.ranks] == [0, 1]
    assert len(found.steps) == 5


def test_both_optimizers_have_an_update(attempts: dict[str, Observed]) -> None:
    facts = attempts["two_optimizers"].ranks[0].facts
    assert facts["optimizer"] == "SGD+Adam"
    assert {*facts["updates"]["5"]} == {"weight", "bias"}


HIDDEN = "import sys; print('observer' in sys.modules['sitecustomize'].__file__)"


def test_a_sitecustomize_of_the_user_is_imported_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    done = run(tmp_path, sys.executable, "-c", HIDDEN, PYTHONPATH=str(tmp_path))
    assert done.stdout.split() == ["mine", "False"], done.stderr


def test_modules_of_the_command_may_have_the_observers_names(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "watching.py").write_text("print('mine')")
    done = run(tmp_path, sys.executable, "-c", "import watching", PYTHONPATH=str(tmp_path / "mine"))
    assert done.stdout.split() == ["mine"], done.stderr


def test_a_process_without_torch_leaves_nothing(tmp_path: Path) -> None:
    code = "import sys; print('typing' in sys.modules, 'json' in sys.modules)"
    done = run(tmp_path, sys.executable, "-S", "-c", code)
    assert done.stdout.split() == ["False", "False"]
    done = run(tmp_path, sys.executable, "-c", "import sys; print('json' in sys.modules)")
    assert done.stdout.split() == ["False"]
    assert [*tmp_path.iterdir()] == []


def test_an_interpreter_that_ignores_the_environment_is_not_seen(tmp_path: Path) -> None:
    run(tmp_path, sys.executable, "-E", "-c", "import torch")
    assert "could see it" in observe(tmp_path).unseen["steps"]
