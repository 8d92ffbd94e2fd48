"""Recorder of one training process: steps, losses, batches, and changes of the weights.

A sketch is a short vector of sums over a weight tensor, small enough to store and compare.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import sys
import time
import weakref
from typing import Any

from .batches import Reading, counts_of
from .facts import compiler_facts, device_facts, optimizer_facts, peak_resident_bytes
from .steps import FIELDS, Steps
from .weights import OptimizerWeights, live, names_in, scales_losses, sketch, weights_of

MOST_STEPS = 100_000
"""Maximum number of recorded steps; later ones are only counted."""

SKETCHES = (1, 2, 8)
"""Numbers of steps after which weight changes are sketched; any warm-up includes them."""

MOST_PENDING = 3
"""Maximum number of prefetched batches without a backward pass at the end of a step."""

MOST_READ = 4096
"""Maximum number of remembered batches without a backward pass."""

MORE_READ = "more batches are read than reach a backward pass"
"""Reason for unknown tokens: nobody can say which batches were those of the training."""

UNSEEN = -1


class Watch:
    """Recorder of one training process: its steps, losses, batches and weight changes."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.folder = torch, folder
        self.forget()

    def forget(self) -> None:
        """Reset all observations, which a forked process has copied from its parent."""
        self.pid, self.began = os.getpid(), time.monotonic_ns()
        self.steps: Steps | None = None
        self.page: Any = None
        self.count = 0
        self.passes = 0
        self.all_passes = 0
        self.depth = 0
        self.group: set[int] = set()
        self.first_group: set[int] = set()
        self.parts: set[int] = set()
        self.entered = False
        self.optimizers: list[Any] = []
        self.loss = math.nan
        self.pending_losses: list[Any] = []
        self.pinned: Any = None
        self.scaled = False
        self.autocast = ""
        self.reading: Reading | None = None
        self.waiting: list[tuple[Reading, tuple[int, int, int] | None]] = []
        self.readings_of_step: set[Reading] = set()
        self.tokens = [0, 0, 0]
        self.tokens_unseen = ""
        self.steps_unseen = ""
        self.loss_unseen = ""
        self.place: tuple[int, int] | None = None
        self.sketched: set[int] = set()
        self.names: dict[int, str] = {}
        self.sharded = False
        self.before: dict[str, Any] = {}
        self.trained: dict[str, Any] = {}
        self.sketch_is_due = False
        self.sketched_weights: set[int] = set()
        self.weights: dict[int, OptimizerWeights] = {}
        self.finalizers: list[Any] = []
        self.of_optimizers: dict[str, Any] = optimizer_facts([])
        self.updates: dict[int, Any] = {}
        self.update_unseen = ""
        self.closed = False

    # Events of the training.

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Store sketches (short sums) of an optimizer's weights before its first step."""
        self.entered = True
        if id(optimizer) not in self.sketched:
            self.sketched.add(id(optimizer))
            self._guarded("update", self._first_sketch, optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Record the end of a step. A failure stops the recording, but not the training."""
        now = time.monotonic_ns()
        try:
            if not self.steps_unseen:
                self._end_step(optimizer, now)
        except Exception as error:
            self._lose(f"the observer failed: {error!r}")

    def _end_step(self, optimizer: Any, now: int) -> None:
        """Record the end of a step, or extend the last step if no backward pass has followed it.

        `now` is the time in nanoseconds of the monotonic clock.
        """
        entered, self.entered = self.entered, False
        if not self.update_unseen:
            self._guarded("update", self._look_at_weights, optimizer)
        first = id(optimizer.param_groups[0])
        if self.passes == 0:
            self._another(optimizer, first, entered, now)
            return
        if self.count and self.group != self.first_group:
            self._lose("optimizers take turns, so that a step of the training has no end")
            return
        self.group, self.parts = {id(optimizer)}, {first}
        if not self.count:
            self.first_group = self.group
            self._open_or_lose()
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        self._note(now)

    def _another(self, optimizer: Any, first: int, entered: bool, now: int) -> None:
        """Count an optimizer step that no backward pass preceded as part of the last training step.

        `first` is the id of the optimizer's first parameter group, and `now` the end in
        nanoseconds. `entered` is False if torch has not reported the beginning of the optimizer
        step.
        """
        if entered and first in self.parts:
            self._lose("an optimizer took two steps without a backward pass between them")
            return
        self.parts.add(first)
        self.group.add(id(optimizer))
        if all(known() is not optimizer for known in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        if self.steps is not None and self.count <= MOST_STEPS:
            self.steps.whole[(self.count - 1) * FIELDS] = now

    def _note(self, now: int) -> None:
        """Write the row of a step that ended at `now`, and reset the counts for the next step."""
        steps, number = self.steps, self.count
        self.count = number + 1
        if steps is not None and number < MOST_STEPS:
            if number == steps.room:
                self._guarded("steps", steps.grow)
                if number == steps.room:
                    self._lose("its record found no room on the disk")
                    return
            row, whole = number * FIELDS, steps.whole
            whole[row] = now
            if self.reading is None or self.tokens_unseen:
                whole[row + 1] = whole[row + 2] = whole[row + 3] = UNSEEN
            else:
                whole[row + 1], whole[row + 2], whole[row + 3] = self.tokens
                if self.waiting:
                    self._check_waiting()
            steps.real[row + 4] = math.nan if self.loss_unseen else self.loss
            whole[row + 5] = self.passes
            whole[row + 6] = 1
            if self.pending_losses:
                self._guarded("loss", self._keep_loss, number)
        self.tokens[:] = 0, 0, 0
        self.readings_of_step.clear()
        self.pending_losses.clear()
        self.passes, self.loss, self.scaled = 0, math.nan, False
        if self.page is not None:
            self.page[0] = self.count
        if number < SKETCHES[-1] and self.count in SKETCHES:
            self.sketch_is_due = True
            self._guarded("update", self._read_optimizers)
            self._guarded("update", self.write)

    def backward(self, tensors: Any) -> None:
        """Count a backward pass, and add its loss and its batch's tokens to the step.

        `tensors` are the arguments of the pass; a single scalar among them is the loss.
        """
        self.passes += 1
        self.all_passes += 1
        if self.sketch_is_due:  # Now all optimizers of the step before have taken it.
            self.sketch_is_due = False
            self._guarded("update", self._early_sketch)
            self._guarded("update", self.write)
        if self.reading is not None and not self.tokens_unseen:
            self._count_tokens()
        loss: Any = tensors
        if not isinstance(loss, self.torch.Tensor):
            if len(loss) != 1:
                self.loss_unseen = "a backward pass was of several tensors"
                return
            loss = loss[0]
        scaled, loss = loss, getattr(loss, "_accel_bench_unscaled", loss)
        if loss.numel() != 1:
            self.loss_unseen = "a backward pass was of no scalar"
        elif self.scaled and loss is scaled:
            self.loss_unseen = "a scaled loss was changed before its backward pass"
        elif loss.is_cpu and not self.pending_losses:
            value = loss.item()
            self.loss = value if self.passes == 1 else self.loss + value
        elif not self.steps_unseen:
            self.pending_losses.append(loss.detach())

    def _count_tokens(self) -> None:
        """Add the tokens of the oldest waiting batch to the tokens of the step."""
        reading, counts = self.waiting.pop(0) if self.waiting else (self.reading, None)
        if counts is None:
            self.tokens_unseen = "a backward pass was of no batch of tokens from a DataLoader"
            return
        self.readings_of_step.add(reading)  # type: ignore[arg-type]
        reading.trained = True  # type: ignore[union-attr]
        tokens = self.tokens
        tokens[0] += counts[0]
        tokens[1] += counts[1]
        tokens[2] += counts[2]

    def read(self, reading: Reading) -> None:
        """Record which data loader's iterator is about to return a batch."""
        if reading is not self.reading:
            self._drop_untrained()
            self.reading = reading

    def fetched(self, reading: Reading, batch: Any) -> None:
        """Queue a batch that a data loader has returned, until its backward pass.

        A batch fetched while gradients are disabled belongs to an evaluation, and is ignored.
        """
        if self.tokens_unseen or len(self.waiting) >= MOST_READ or not self.torch.is_grad_enabled():
            return
        self.waiting.append((reading, counts_of(batch, self.torch)))

    def _check_waiting(self) -> None:
        """Give the tokens up if a batch that was read may not have been trained on.

        Batches that wait for their backward pass at the end of a step were read ahead, unless they
        are many, their loader has ended, or another loader is read too, as by an evaluation.
        """
        self._drop_untrained()
        readings = {reading for reading, _ in self.waiting} | self.readings_of_step
        live = sum(not reading.ended for reading in readings)
        left_over = any(reading.ended for reading in readings - {self.reading})
        if len(self.waiting) > MOST_PENDING or (self.waiting and (left_over or live > 1)):
            self.tokens_unseen = MORE_READ

    def _drop_untrained(self) -> None:
        """Drop queued batches of iterators that ended without backward passes: evaluations."""
        self.waiting[:] = [
            batch for batch in self.waiting if batch[0].trained or not batch[0].ended
        ]

    def _keep_loss(self, number: int) -> None:
        """Copy the sum of the losses of step `number` from the device, without synchronizing."""
        total = self.pending_losses[0]
        if self.passes > len(self.pending_losses):  # The first ones lay on the host.
            total = total + self.loss
        for loss in self.pending_losses[1:]:
            total = total + loss
        if self.pinned is None:
            room = self.torch.full((MOST_STEPS,), math.nan, dtype=self.torch.float32)
            self.pinned = room.pin_memory() if total.device.type == "cuda" else room
        self.pinned[number].copy_(total.reshape(()), non_blocking=True)

    # What becomes of it.

    def _lose(self, reason: str) -> None:
        self.steps_unseen = reason
        self.weights.clear()
        self._guarded("update", self._open)
        self._guarded("update", self.write)

    def _guarded(self, what: str, work: Any, *args: Any) -> None:
        """Call `work(*args)`, and store an exception as a reason why an observation is missing.

        `what` names the observation: `steps`, `loss` or `update`.
        """
        try:
            work(*args)
        except Exception as error:
            unseen = f"{what}_unseen"
            setattr(self, unseen, getattr(self, unseen) or f"{type(error).__name__}: {error}")

    @property
    def _name(self) -> str:
        return os.path.join(self.folder, f"{self.pid}-{self.began}")

    def _open(self) -> None:
        if self.steps is None:
            self.steps = Steps(f"{self._name}.steps")
        page = os.environ.get("ACCEL_BENCH_AB_PAGE", "")
        if self.page is None and os.path.exists(page) and not self._rank_and_world()[0]:
            with open(page, "r+b") as file:
                self.page = memoryview(mmap.mmap(file.fileno(), 32)).cast("Q")

    def _open_or_lose(self) -> None:
        try:
            self._open()
        except OSError as error:
            self._lose(f"its record could not be written: {error.strerror}")

    def _rank_and_world(self) -> tuple[int, int]:
        """Return rank and world size, stored since the process group may be destroyed later."""
        distributed = self.torch.distributed
        if self.place is None and distributed.is_available() and distributed.is_initialized():
            self.place = distributed.get_rank(), distributed.get_world_size()
        variables = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE"))
        rank, world = (int(value) if value and value.isdigit() else None for value in variables)
        return self.place or (rank or 0, world or 1)

    def close(self) -> None:
        """Write all observations at the end of the process."""
        if self.closed or os.getpid() != self.pid or not (self.count or self.all_passes):
            return
        for finalizer in self.finalizers:
            finalizer()
        self.closed = True
        self._drop_untrained()
        if any(reading.stopped for reading, _ in self.waiting):  # A batch was thrown away.
            self.tokens_unseen = self.tokens_unseen or MORE_READ
        if self.pinned is not None and self.steps is not None:
            self._guarded("loss", self._read_losses)
        self._guarded("update", self.write)

    def _read_losses(self) -> None:
        if self.pinned.is_pinned():
            self.torch.cuda.synchronize()  # The command has ended its work.
        for number in range(min(self.count, MOST_STEPS)):
            loss = float(self.pinned[number])
            self.steps.real[number * FIELDS + 4] = loss  # type: ignore[union-attr]

    def write(self) -> None:
        """Write all observations of this process, except its steps, to its JSON file."""
        path = f"{self._name}.json"
        with open(f"{path}.part", "w", encoding="utf8") as file:
            json.dump(self.facts(), file)
        os.replace(f"{path}.part", path)

    @property
    def _lost_losses(self) -> str:
        """Reason why losses would be lost if the process were killed now; empty on a CPU."""
        lost = self.pinned is not None and not self.closed
        return "the command was killed, with its losses on the device" if lost else ""

    def _read_optimizers(self) -> None:
        """Record the optimizers' settings; this is called after steps 1, 2 and 8 of every run."""
        alive = [known() for known in self.optimizers]
        self.of_optimizers = optimizer_facts([item for item in alive if item is not None])

    def facts(self) -> dict[str, Any]:
        """Return all observations of this process, except its steps, as JSON."""
        tokens = self.tokens_unseen
        if not tokens and self.reading is None:
            tokens = "no DataLoader of torch was read"
        return {
            "pid": self.pid,
            "began": self.began,
            "rank": self._rank_and_world()[0],
            "world_size": self._rank_and_world()[1],
            "python": sys.version.split()[0],
            "torch": str(self.torch.__version__),
            "steps": self.count,
            "backward_passes": self.all_passes,
            "steps_unseen": self.steps_unseen,
            "tokens_unseen": tokens,
            "loss_unseen": self.loss_unseen or self._lost_losses,
            "update_unseen": self.update_unseen,
            "updates": self.updates,
            "threads": self.torch.get_num_threads(),
            "autocast": self.autocast,
            "peak_rss_bytes": peak_resident_bytes(),
            "ended": self.closed,
            **device_facts(self.torch),
            **self.of_optimizers,
            **compiler_facts(),
        }

    # The change of the weights.

    def _first_sketch(self, optimizer: Any) -> None:
        """Store sketches (short sums) of an optimizer's weights, now and later at its deletion.

        The observer thus keeps no weight alive longer than the optimizer does.
        """
        weights = weights_of(optimizer)
        parameters = [p for p in weights if id(p) not in self.sketched_weights]
        if not parameters:  # It wraps an optimizer.
            return
        if any(id(weight) not in self.names for weight in parameters):
            self._look_at_modules()
        shared = "optimizers share weights" if len(parameters) < len(weights) else ""
        if reason := self._why_no_update(parameters) or shared:
            self._give_update_up(reason)
            return
        self.sketched_weights.update(map(id, parameters))
        trained: dict[str, Any] = {}
        for weight in parameters:
            name = self.names[id(weight)]
            known = name in self.before or name in trained
            trained[f"{name} {len(self.before) + len(trained)}" if known else name] = weight
        self.before.update((n, sketch(n, p, self.torch)) for n, p in trained.items())
        self.trained.update((n, weakref.ref(p)) for n, p in trained.items())
        self.weights[id(optimizer)] = OptimizerWeights(trained, len(weights), self.torch)
        last = weakref.finalize(
            optimizer, self._guarded, "update", self._last_sketch, self.pid, id(optimizer)
        )
        self.finalizers.append(last)

    def _give_update_up(self, reason: str) -> None:
        """Store why the changes of weights cannot be compared, and keep no weights."""
        self.update_unseen = reason
        self.updates.clear()
        self.weights.clear()

    def _look_at_weights(self, optimizer: Any) -> None:
        """Record the state of an optimizer's weights after its step."""
        weights = self.weights.get(id(optimizer))
        if weights is None:  # It wraps an optimizer, or is wrapped.
            return
        number = sum(len(group["params"]) for group in optimizer.param_groups)
        early = self.count < SKETCHES[-1]
        if number != weights.number or (
            early and not self.sketched_weights.issuperset(map(id, weights_of(optimizer)))
        ):
            self._give_update_up("the optimizer got other weights after its first step")
        else:
            weights.record()

    def _look_at_modules(self) -> None:
        """Find the names of the optimizers' weights, and detect FSDP and DeepSpeed's loss scale."""
        modules, optimizers = live(self.torch.nn.Module, self.torch.optim.Optimizer)
        self.names = {**names_in(modules, optimizers), **self.names}
        self.sharded = any(
            type(module).__name__ == "FullyShardedDataParallel" for module in modules
        )
        if any(map(scales_losses, modules)):
            self.loss_unseen = "DeepSpeed multiplies it by a factor of its own, for float16"

    def _why_no_update(self, parameters: list[Any]) -> str:
        """Return why the changes of weights cannot be compared; empty if they can."""
        if self.update_unseen:
            return self.update_unseen
        if self._rank_and_world()[0]:
            return "another rank keeps it"
        if self.sharded or any(hasattr(weight, "full_tensor") for weight in parameters):
            return "the weights lie on several ranks"
        if any(id(weight) not in self.names for weight in parameters):
            return "the optimizer's weights are those of no module, as with DeepSpeed's ZeRO"
        return ""

    def _early_sketch(self) -> None:
        """Store sketches (short sums) of all weights' changes, unless a weight was deleted."""
        alive = {name: known() for name, known in self.trained.items()}
        if alive and all(weight is not None for weight in alive.values()):
            self._sketch(alive)

    def _last_sketch(self, pid: int, optimizer_id: int) -> None:
        """Store sketches (short sums) of the weight changes of an optimizer that is being deleted.

        `pid` is the process that made the optimizer. No sketch is stored if weights were changed
        after the last step, for example by loading the best checkpoint.
        """
        if pid != os.getpid():
            return
        self.sketched.discard(optimizer_id)
        weights = self.weights.pop(optimizer_id, None)
        if weights is None or self.steps_unseen or self.update_unseen:
            return
        self.sketched_weights.difference_update(map(id, weights.trained.values()))
        if weights.changed():
            self.update_unseen = "weights were changed after the last step"
        else:
            self._sketch(weights.trained)
        self.write()

    def _sketch(self, trained: dict[str, Any]) -> None:
        """Store a sketch (short sums) of each weight's change since before the first step."""
        if self.update_unseen:
            return
        updates = self.updates.setdefault(self.count, {})
        for name, weight in trained.items():
            change = sketch(name, weight, self.torch) - self.before[name]
            updates[name] = {
                "elements": weight.numel(),
                "dtype": str(weight.dtype).replace("torch.", ""),
                "change": change.tolist(),
            }
