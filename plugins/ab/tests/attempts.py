"""Trainings that mislead an observer: `attempts.py FOLDER` runs each in a process forked from it.

Each leaves its records in FOLDER/NAME; how it ended stands in FOLDER/names.json.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch._dynamo  # As an optimizer does: once here in the place of once in each process.
import torch.distributed.fsdp

STEPS = 5
Kind = TypeVar("Kind")


class Ours:
    """A tiny training: a linear layer, five batches of four samples."""

    def __init__(self, kind: Any = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = kind(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(STEPS, 4, 4)

    def loss(self, step: int) -> Any:
        """Return the loss of a step's batch."""
        return self.model(self.inputs[step]).square().mean()


def plain() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def twice_a_batch() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
        ours.optimizer.step()


def two_losses_a_batch() -> None:
    ours = Ours()
    for step in range(STEPS):
        for _ in range(2):
            ours.loss(step).backward()
            ours.optimizer.step()


def two_optimizers() -> None:
    ours = Ours()
    weight, bias = ours.model.weight, ours.model.bias
    both = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([bias], lr=0.1)]
    for step in range(STEPS):
        ours.loss(step).backward()
        for one in both:
            one.step()


def optimizers_in_turns() -> None:
    ours, other = Ours(), Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
        other.loss(step).backward()
        other.optimizer.step()


def replaced_step() -> None:
    ours = Ours()

    def step_of_our_own() -> None:
        with torch.no_grad():
            for one in ours.model.parameters():
                one.sub_(0.1 * one.grad)

    ours.optimizer.step = step_of_our_own
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def wrapped_step() -> None:
    ours = Ours()
    own = ours.optimizer.step
    ours.optimizer.step = lambda: own()  # noqa: PLW0108 - it has no attributes of its own
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def replaced_for_the_class() -> None:
    own = torch.optim.SGD.step
    torch.optim.SGD.step = lambda self: own(self)  # noqa: PLW0108
    plain()


def without_optimizer() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        with torch.no_grad():
            for one in ours.model.parameters():
                one.sub_(0.1 * one.grad)


def closures() -> None:
    ours = Ours()
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            ours.optimizer.zero_grad()
            loss = ours.loss(step)
            loss.backward()
            return loss

        ours.optimizer.step(closure)


def in_backward() -> None:
    ours = Ours()
    for one in ours.model.parameters():
        own = torch.optim.SGD([one], lr=0.1)
        one.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    for step in range(STEPS):
        ours.loss(step).backward()


def layers() -> Any:
    """Return three layers with equal names in themselves."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))


def train_layers(model: Any, optimizers: list[Any]) -> None:
    """Take ten steps of all optimizers, or of none if the backward pass takes them."""
    inputs = torch.randn(10, 4, 4, generator=torch.Generator().manual_seed(1))
    for batch in inputs:
        model(batch).square().mean().backward()
        for one in optimizers:
            one.step()
            one.zero_grad()


def one_for_all_layers() -> None:
    model = layers()
    train_layers(model, [torch.optim.SGD(model.parameters(), lr=0.1)])


def one_for_each_layer() -> None:
    model = layers()
    train_layers(model, [torch.optim.SGD(one.parameters(), lr=0.1) for one in model])


def one_for_each_weight() -> None:
    model, held = layers(), []
    for weight in model.parameters():
        held.append(torch.optim.SGD([weight], lr=0.1))

        def step(weight: Any, own: Any = held[-1]) -> None:
            own.step()
            own.zero_grad()

        weight.register_post_accumulate_grad_hook(step)
    train_layers(model, [])


def group_by_group() -> None:
    """As DeepSpeed's ZeRO does: a step for each group of parameters."""
    model = layers()
    optimizer = torch.optim.SGD([{"params": one.parameters()} for one in model], lr=0.1)
    for _ in range(STEPS):
        model(torch.ones(1, 4)).sum().backward()
        groups = optimizer.param_groups
        for group in groups:
            optimizer.param_groups = [group]
            optimizer.step()
        optimizer.param_groups = groups


class Careful(torch.optim.SGD):
    """An optimizer around that of its base class."""

    def step(self, closure: Any = None) -> Any:
        """Take the step of the base class."""
        return super().step(closure)


def step_of_a_base_class() -> None:
    ours = Ours()  # Now torch has hooks in SGD.step too.
    ours.optimizer = Careful(ours.model.parameters(), lr=0.1)
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def loader(count: int, length: int, batch: int = 2) -> Any:
    """Return a DataLoader of so many rows of token ids."""
    rows = [{"input_ids": torch.ones(length, dtype=torch.long)} for _ in range(count)]
    return torch.utils.data.DataLoader(rows, batch)


def evaluation_before_the_backward_pass() -> None:
    ours, other = Ours(), loader(4, 100)
    for step, _ in enumerate(loader(10, 8)):
        for _ in other:
            ours.loss(step)
        ours.loss(step).backward()
        ours.optimizer.step()


def cut_off_evaluation() -> None:
    ours, other = Ours(), loader(4, 100)
    for step, _ in enumerate(loader(10, 8)):
        with torch.no_grad():
            next(iter(other))
        ours.loss(step).backward()
        ours.optimizer.step()


def two_loaders_a_step() -> None:
    ours = Ours()
    for step, _ in enumerate(zip(loader(10, 8), loader(10, 100), strict=True)):
        ours.loss(step).backward()
        ours.optimizer.step()


def batches_of(*lengths: int) -> Any:
    """Return a DataLoader of a batch of each length."""
    rows = [{"input_ids": torch.ones(length, dtype=torch.long)} for length in lengths]
    return torch.utils.data.DataLoader(rows, 1)


def train_batches(batches: Any) -> None:
    """Take a step for each batch."""
    ours = Ours()
    for step, _ in enumerate(batches):
        ours.loss(step).backward()
        ours.optimizer.step()


def a_look_at_one_batch() -> None:
    batches = batches_of(8, 9, 10, 11, 12)
    next(iter(batches))
    train_batches(batches)


def cut_off_evaluation_with_gradients() -> None:
    ours, other = Ours(), batches_of(100, 100)
    for step, _ in enumerate(batches_of(8, 9, 10, 11, 12)):
        ours.loss(step).backward()
        ours.optimizer.step()
        for _ in other:
            break


def tried_again_with_smaller_batches() -> None:
    """As after running out of memory in the first forward pass."""
    next(iter(batches_of(100)))
    train_batches(batches_of(8, 9, 10, 11, 12))


def evaluation_from_a_lasting_iterator() -> None:
    ours, other = Ours(), iter(batches_of(100, 100))
    for step, _ in enumerate(batches_of(8, 9, 10, 11, 12)):
        ours.loss(step).backward()
        ours.optimizer.step()
        if step == 1:
            next(other)


def a_batch_thrown_away() -> None:
    batches = batches_of(7, 8, 9, 10, 11, 12)
    train_batches(batch for batch in batches if batch["input_ids"].shape[1] != 8)


def a_loader_in_a_loader() -> None:
    class Rows(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from batches_of(8, 9, 10)

    train_batches(torch.utils.data.DataLoader(Rows(), None))


def a_step_before_the_training() -> None:
    """As trainers take it for the optimizer's states, or before a scheduler."""
    ours = Ours()
    ours.optimizer.step()
    for step, _ in enumerate(batches_of(8, 9, 10, 11, 12)):
        ours.loss(step).backward()
        ours.optimizer.step()


def fail_one_pass(failing: int, skips_step: bool) -> None:
    """Train with a backward pass that fails, after which its optimizer step is left out or not."""
    ours = Ours()
    for step, _ in enumerate(batches_of(8, 9, 10, 11, 12)):
        loss = ours.loss(step)
        if step == failing:
            loss.register_hook(lambda _: 1 / 0)
        with suppress(ZeroDivisionError):
            loss.backward()
        if not (skips_step and step == failing):
            ours.optimizer.step()


def failed_backward_pass() -> None:
    fail_one_pass(2, skips_step=True)


def failed_last_pass() -> None:
    fail_one_pass(4, skips_step=False)


def a_batch_thrown_away_before_another_epoch() -> None:
    batches = batches_of(7, 8, 9, 10)
    used = (batch for _ in range(2) for batch in batches if batch["input_ids"].shape[1] != 8)
    train_batches(batch for batch, _ in zip(used, range(5), strict=False))


def diverged() -> None:
    ours = Ours()
    for step in range(STEPS):
        (ours.loss(step) * float("nan")).backward()
        ours.optimizer.step()


def optimizers_of_a_shared_weight() -> None:
    model = layers()
    every = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.nn.Linear(4, 4)
    train_layers(model, [every, torch.optim.SGD([model[0].weight, other.weight], lr=0.1)])


def train_rows(*parts: Any) -> None:
    """Take a step for each batch of unnamed tensors."""
    train_batches(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*parts), 1))


TEXT = torch.arange(40).view(STEPS, 8)


def ids_and_labels() -> None:
    train_rows(TEXT, torch.where(TEXT % 8 < 3, -100, TEXT))


def ids_and_a_mask() -> None:
    train_rows(TEXT, TEXT % 2, TEXT[:, 0])


def two_texts() -> None:
    train_rows(TEXT, torch.cat([TEXT, TEXT], 1))


def several_batches_in_one() -> None:
    train_rows(TEXT, TEXT, TEXT)


def images() -> None:
    ours, rows = Ours(), torch.zeros(STEPS, 3, 32, 32, dtype=torch.uint8)
    for step, _ in enumerate(torch.utils.data.DataLoader(rows, 1)):
        ours.loss(step).backward()
        ours.optimizer.step()


class Jagged:
    """A batch that has keys, and no `get`."""

    def keys(self) -> list[str]:
        """Return the names of its parts."""
        return ["features"]


def batches_without_get() -> None:
    ours = Ours()
    rows = torch.utils.data.DataLoader(range(STEPS), 1, collate_fn=lambda _: Jagged())
    for step, _ in enumerate(rows):
        ours.loss(step).backward()
        ours.optimizer.step()


def loss_of_two_devices() -> None:
    ours, on_host = Ours(), [True]
    ours.optimizer.param_groups[0]["lr"] = 0.0
    torch.Tensor.is_cpu = property(lambda tensor: on_host[0])  # type: ignore[assignment]
    for step in range(STEPS):
        for place in (step % 2 == 0, step % 2 == 1):
            on_host[0] = place
            ours.loss(0).backward()
        ours.optimizer.step()


def killed_after_a_loss_of_two_parts() -> None:
    ours = Ours()
    for step in range(10):
        ours.loss(step % STEPS).backward()
        if step == 9:
            torch.autograd.backward([ours.loss(0), ours.loss(1)])
        ours.optimizer.step()
    os.kill(os.getpid(), signal.SIGKILL)


def killed_with_losses_on_a_device() -> None:
    torch.Tensor.is_cpu = property(lambda tensor: False)  # type: ignore[assignment]
    plain()
    os.kill(os.getpid(), signal.SIGKILL)


def scaled_and_divided() -> None:
    ours = Ours()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        (scaler.scale(ours.loss(step)) / 2).backward()
        scaler.step(ours.optimizer)
        scaler.update()


def scaled_together() -> None:
    ours = Ours()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        sum(scaler.scale([ours.loss(step), ours.loss(step)])).backward()
        scaler.step(ours.optimizer)
        scaler.update()


def scaled_by_a_class_with_its_own_scale() -> None:
    """As FSDP's."""

    class Own(torch.amp.GradScaler, Generic[Kind]):
        def scale(self, outputs: Any, factor: float = 1.0) -> Any:
            return (outputs["loss"] if isinstance(outputs, dict) else outputs) * factor

    ours, scaler = Ours(), Own[int]("cpu")
    assert scaler.scale({"loss": torch.ones(())}) == 1
    for step in range(STEPS):
        scaler.scale(ours.loss(step), factor=4.0).backward()
        ours.optimizer.step()


def loss_of_two_parts() -> None:
    ours = Ours()
    for step in range(STEPS):
        ours.loss(step).backward()
        if step == STEPS - 1:
            torch.autograd.backward([ours.loss(step), ours.loss(step)])
        ours.optimizer.step()


def best_weights_loaded() -> None:
    ours = Ours()
    best = {name: one.clone() for name, one in ours.model.state_dict().items()}
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
    ours.model.load_state_dict(best)


def averaged_weights_copied() -> None:
    ours = Ours()
    averages = [one.detach().clone() for one in ours.model.parameters()]
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()
    for one, average in zip(ours.model.parameters(), averages, strict=True):
        one.data.copy_(average)


def weights_freed_after_each_step() -> None:
    ours = Ours()
    weights = [*ours.model.parameters()]
    kept: list[Any] = []

    def free(*_: Any) -> None:
        kept[:] = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.untyped_storage().resize_(0)

    ours.optimizer.register_step_post_hook(free)
    for step in range(STEPS):
        for weight, values in zip(weights, kept, strict=False):
            weight.untyped_storage().resize_(values.nbytes)
            weight.data.copy_(values)
        ours.loss(step).backward()
        ours.optimizer.step()


def one_layer_changed() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train_layers(model, [optimizer])
    with torch.no_grad():
        model[1].weight.zero_()


def a_layer_added_later() -> None:
    model = layers()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    train_layers(model, [optimizer])
    optimizer.add_param_group({"params": model[1].parameters()})
    train_layers(model, [optimizer])


class Around(torch.optim.Optimizer):
    """An optimizer around another one, with the same weights."""

    def __init__(self, own: Any) -> None:
        self.own = own
        super().__init__(own.param_groups, {})

    def step(self, closure: Any = None) -> Any:
        """Take the other one's step."""
        return self.own.step(closure)


def optimizer_around_another() -> None:
    ours = Ours()
    ours.optimizer = Around(ours.optimizer)
    for step in range(STEPS):
        ours.loss(step).backward()
        ours.optimizer.step()


def compiled_step() -> None:
    ours = Ours()
    step_of = torch.compile(lambda: ours.optimizer.step(), backend="eager")  # noqa: PLW0108
    for step in range(STEPS):
        ours.loss(step).backward()
        step_of()


def two_ranks_without_variables() -> None:
    rank = int(not os.fork())
    where = Path(sys.argv[1], "two_ranks_without_variables", "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    plain()
    torch.distributed.destroy_process_group()
    if not rank:
        os.wait()


def fully_sharded() -> None:
    rank = int(not os.fork())
    where = Path(sys.argv[1], "fully_sharded", "rendezvous").as_uri()
    torch.distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=2)
    whole = torch.distributed.fsdp.FullyShardedDataParallel
    model = whole(layers(), device_id=torch.device("cpu"), use_orig_params=True)
    train_layers(model, [torch.optim.SGD(model.parameters(), lr=0.1)])
    torch.distributed.destroy_process_group()
    if not rank:
        os.wait()


def no_room() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))
    plain()


def scaled() -> None:
    ours = Ours()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(STEPS):
        ours.optimizer.zero_grad()
        scaler.scale(ours.loss(step)).backward()
        if step == 2:
            ours.model.weight.grad.fill_(torch.inf)
        scaler.step(ours.optimizer)
        scaler.update()


def in_a_fork() -> None:
    plain()
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        plain()


def killed() -> None:
    plain()
    os.kill(os.getpid(), 9)


CASES = [
    plain,
    twice_a_batch,
    two_losses_a_batch,
    two_optimizers,
    optimizers_in_turns,
    replaced_step,
    wrapped_step,
    replaced_for_the_class,
    without_optimizer,
    closures,
    in_backward,
    one_for_all_layers,
    one_for_each_layer,
    one_for_each_weight,
    group_by_group,
    step_of_a_base_class,
    evaluation_before_the_backward_pass,
    cut_off_evaluation,
    two_loaders_a_step,
    images,
    scaled_and_divided,
    loss_of_two_parts,
    best_weights_loaded,
    two_ranks_without_variables,
    fully_sharded,
    no_room,
    scaled,
    in_a_fork,
    killed,
    killed_with_losses_on_a_device,
    batches_without_get,
    a_look_at_one_batch,
    cut_off_evaluation_with_gradients,
    tried_again_with_smaller_batches,
    evaluation_from_a_lasting_iterator,
    a_batch_thrown_away,
    a_loader_in_a_loader,
    a_step_before_the_training,
    failed_backward_pass,
    failed_last_pass,
    a_batch_thrown_away_before_another_epoch,
    diverged,
    optimizers_of_a_shared_weight,
    scaled_together,
    scaled_by_a_class_with_its_own_scale,
    averaged_weights_copied,
    weights_freed_after_each_step,
    one_layer_changed,
    a_layer_added_later,
    optimizer_around_another,
    compiled_step,
    killed_after_a_loss_of_two_parts,
    loss_of_two_devices,
    ids_and_labels,
    ids_and_a_mask,
    two_texts,
    several_batches_in_one,
]


def run_all(cases: list[Any], folder: Path) -> None:
    """Run each case in a process of its own, whose records are in a folder with its name."""
    torch.set_num_threads(1)
    names = {}
    for case in cases:
        place = folder / case.__name__
        place.mkdir()
        child = os.fork()
        if not child:
            sys.modules["_accel_bench_ab_watching"].WATCHES[0].folder = str(place)
            case()
            atexit._run_exitfuncs()
            os._exit(0)  # To take the interpreter down takes longer than most cases.
        names[case.__name__] = os.waitpid(child, 0)[1]
    (folder / "names.json").write_text(json.dumps(names))


if __name__ == "__main__":
    run_all(CASES, Path(sys.argv[1]))
