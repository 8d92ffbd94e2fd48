"""Observer of a training process: records each optimizer step in a memory-mapped file.

It is imported by its path into the observed command's own Python, and uses only the standard
library and torch. It never synchronizes with the device and prints nothing. Numbers of a step are
in shared memory as soon as the step has ended, so that they survive any signal.
`accel_bench_ab.record` reads the files.
"""

from __future__ import annotations

import atexit
import json
import math
import mmap
import os
import struct
import sys
import time
import weakref
from typing import Any

FIELDS = 8
"""Numbers of a step, each of eight bytes: nanoseconds of its end by the monotonic clock; processed,
real and supervised tokens, and sequences, -1 for not seen; the loss as a float64, NaN for not seen;
backward passes; 1 once the step has ended."""

GROWTH = 1024
"""Number of steps by which a file grows, allocated on the disk, since writing to a page without
disk space would kill the process."""

MOST_STEPS = 100_000
"""Maximum number of recorded steps; later ones are only counted."""

SKETCHES = (2, 8)
"""Numbers of steps after which weight changes are sketched; any warm-up includes them."""

BUCKETS, ROW = 31, 31 * 131
"""Number of sums in a sketch, and number of elements that share a random sign."""

MOST_PENDING = 3
"""Maximum number of prefetched batches without a backward pass at the end of a step."""

MOST_READ = 4096
"""Maximum number of remembered batches without a backward pass."""

UNSEEN = -1

WATCHES: list[Watch] = []
"""The observer of this process, once torch is imported; at most one."""


def start(torch: Any, folder: str) -> None:
    """Observe optimizers, losses and batches of this process and those forked from it."""
    watch = Watch(torch, folder)
    WATCHES.append(watch)
    optimizers = sys.modules["torch.optim.optimizer"]
    optimizers.register_optimizer_step_pre_hook(untraced(watch.before_step))
    optimizers.register_optimizer_step_post_hook(untraced(watch.after_step))
    _watch_backward(torch, watch)
    _watch_scaler(torch, watch)
    _watch_loader(torch, watch)
    os.register_at_fork(after_in_child=watch.forget)
    atexit.register(watch.close)


def untraced(function: Any) -> Any:
    """Return the function, marked to be excluded from torch's compiler."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


class Steps:
    """Memory-mapped file of a process's steps, with a row of `FIELDS` numbers for each step."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self.room = 0
        self.whole: Any = ()
        self.real: Any = ()
        self.grow()

    def grow(self) -> None:
        """Enlarge the file for more steps. Raises OSError on a full disk."""
        more = GROWTH * FIELDS * 8
        os.posix_fallocate(self._file, self.room * FIELDS * 8, more)
        self.room += GROWTH
        page = mmap.mmap(self._file, self.room * FIELDS * 8)
        self.whole, self.real = memoryview(page).cast("q"), memoryview(page).cast("d")


class Reading:
    """One iterator of a data loader: whether it has ended, and whether a batch was trained on."""

    def __init__(self) -> None:
        self.ended = self.trained = False


class Watch:
    """Observations of one training process."""

    def __init__(self, torch: Any, folder: str) -> None:
        self.torch, self.folder = torch, folder
        self.forget()

    def forget(self) -> None:
        """Reset all observations, since a forked process inherits those of its parent."""
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
        self.reading: Reading | None = None
        self.waiting: list[tuple[Reading, tuple[int, int, int, int] | None]] = []
        self.tokens = [0, 0, 0, 0]
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
        self.probe: Any = None
        self.version = 0
        self.finalizers: list[Any] = []
        self.of_optimizers: dict[str, Any] = optimizer_facts([])
        self.updates: dict[int, Any] = {}
        self.update_unseen = ""
        self.closed = False

    # Events of the training.

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Sketch the weights before the first step of each optimizer."""
        self.entered = True
        if id(optimizer) not in self.sketched:
            self.sketched.add(id(optimizer))
            self._guarded(self._first_sketch, optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Record the end of a step; a failure ends the record, and never the training."""
        now = time.monotonic_ns()
        try:
            if not self.steps_unseen:
                self._end_step(optimizer, now)
        except Exception as error:
            self._lose(f"the observer failed: {error!r}")

    def _end_step(self, optimizer: Any, now: int) -> None:
        """Record the end of a step, which further steps without a backward pass belong to."""
        entered, self.entered = self.entered, False
        if self.probe is not None and (weight := self.probe()) is not None:
            self.version = weight._version
        first = id(optimizer.param_groups[0])
        if self.passes == 0 and self.count:
            self._another(optimizer, first, entered, now)
            return
        if self.count and self.group != self.first_group:
            self._lose("optimizers take turns, so that a step of the training has no end")
            return
        self.group, self.parts = {id(optimizer)}, {first}
        if not self.count:
            self.first_group = self.group
            self._open_or_lose()
        if all(one() is not optimizer for one in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        self._note(now)

    def _another(self, optimizer: Any, first: int, entered: bool, now: int) -> None:
        """Count a further optimizer, or its next group of parameters, as part of the same step.

        A step that ends without having been `entered` is that of a class around the last one.
        """
        if entered and first in self.parts:
            self._lose("an optimizer took two steps without a backward pass between them")
            return
        self.parts.add(first)
        self.group.add(id(optimizer))
        if all(one() is not optimizer for one in self.optimizers):
            self.optimizers.append(weakref.ref(optimizer))
        if self.steps is not None and self.count <= MOST_STEPS:
            self.steps.whole[(self.count - 1) * FIELDS] = now

    def _note(self, now: int) -> None:
        """Write the row of a finished step."""
        steps, number = self.steps, self.count
        self.count = number + 1
        if steps is not None and number < MOST_STEPS:
            if number == steps.room:
                self._guarded(steps.grow)
                if number == steps.room:
                    self._lose("its record found no room on the disk")
                    return
            row, whole = number * FIELDS, steps.whole
            whole[row] = now
            if self.reading is None or self.tokens_unseen:
                whole[row + 1] = whole[row + 2] = whole[row + 3] = whole[row + 4] = UNSEEN
            else:
                whole[row + 1], whole[row + 2], whole[row + 3], whole[row + 4] = self.tokens
                if len(self.waiting) > MOST_PENDING:
                    self._drop_untrained()
                    if len(self.waiting) > MOST_PENDING:
                        self.tokens_unseen = "more batches are read than reach a backward pass"
            steps.real[row + 5] = self.loss
            whole[row + 6] = self.passes
            whole[row + 7] = 1
            if self.pending_losses:
                self._guarded(self._keep_loss, number)
        self.tokens[:] = 0, 0, 0, 0
        self.passes, self.loss, self.scaled = 0, math.nan, False
        if self.page is not None:
            self.page[0] = self.count
        if number < 8 and (number == 0 or self.count in SKETCHES):
            self.sketch_is_due = True
            self._guarded(self._read_optimizers)
            self._guarded(self.write)

    def backward(self, tensors: Any) -> None:
        """Count a backward pass, with its loss and its batch."""
        self.passes += 1
        self.all_passes += 1
        if self.sketch_is_due:  # Now all optimizers of the step before have taken it.
            self.sketch_is_due = False
            self._guarded(self._early_sketch)
            self._guarded(self.write)
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
        elif loss.is_cpu:
            value = loss.item()
            self.loss = value if self.passes == 1 else self.loss + value
        else:
            self.pending_losses.append(loss.detach())

    def _count_tokens(self) -> None:
        """Add the tokens of the batch that was read first to those of the step."""
        reading, counts = self.waiting.pop(0) if self.waiting else (self.reading, None)
        if counts is None:
            self.tokens_unseen = "a backward pass was of no batch of tokens from a DataLoader"
            return
        reading.trained = True  # type: ignore[union-attr]
        tokens = self.tokens
        tokens[0] += counts[0]
        tokens[1] += counts[1]
        tokens[2] += counts[2]
        tokens[3] += counts[3]

    def read(self, reading: Reading) -> None:
        """Record the data loader that is about to return a batch."""
        if reading is not self.reading:
            self._drop_untrained()
            self.reading = reading

    def fetched(self, reading: Reading, batch: Any) -> None:
        """Record a batch that a data loader has returned, until its backward pass.

        A batch that is read without gradients is one of an evaluation.
        """
        if self.tokens_unseen or len(self.waiting) >= MOST_READ or not self.torch.is_grad_enabled():
            return
        self.waiting.append((reading, counts_of(batch, self.torch)))

    def _drop_untrained(self) -> None:
        """Forget the batches of an evaluation: its loader has ended without a backward pass."""
        self.waiting[:] = [one for one in self.waiting if one[0].trained or not one[0].ended]

    def _keep_loss(self, number: int) -> None:
        """Copy the sum of a step's losses from the device, without synchronizing."""
        total = self.pending_losses[0]
        for one in self.pending_losses[1:]:
            total = total + one
        self.pending_losses.clear()
        if self.pinned is None:
            room = self.torch.full((MOST_STEPS,), math.nan, dtype=self.torch.float32)
            self.pinned = room.pin_memory() if total.device.type == "cuda" else room
        self.pinned[number].copy_(total.reshape(()), non_blocking=True)

    # What becomes of it.

    def _lose(self, reason: str) -> None:
        self.steps_unseen = reason
        self._guarded(self._open)
        self._guarded(self.write)

    def _guarded(self, work: Any, *args: Any) -> None:
        """Call a function whose exceptions must not affect the training."""
        try:
            work(*args)
        except Exception as error:
            self.update_unseen = self.update_unseen or f"{type(error).__name__}: {error}"

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
        """Return rank and world size, as known at the first step: a process group may be gone
        later."""
        distributed = self.torch.distributed
        if self.place is None and distributed.is_available() and distributed.is_initialized():
            self.place = distributed.get_rank(), distributed.get_world_size()
        variables = (os.environ.get(name) for name in ("RANK", "WORLD_SIZE"))
        rank, world = (int(one) if one and one.isdigit() else None for one in variables)
        return self.place or (rank or 0, world or 1)

    def close(self) -> None:
        """Write all observations at the end of the process."""
        if self.closed or os.getpid() != self.pid or not (self.count or self.all_passes):
            return
        for finalizer in self.finalizers:
            finalizer()
        self.closed = True
        if self.pinned is not None and self.steps is not None:
            self._guarded(self._read_losses)
        self._guarded(self.write)

    def _read_losses(self) -> None:
        if self.pinned.is_pinned():
            self.torch.cuda.synchronize()  # The command has ended its work.
        for number in range(min(self.count, MOST_STEPS)):
            self.steps.real[number * FIELDS + 5] = float(self.pinned[number])  # type: ignore[union-attr]

    def write(self) -> None:
        """Write the process's facts, replacing the previous ones."""
        path = f"{self._name}.json"
        with open(f"{path}.part", "w", encoding="utf8") as file:
            json.dump(self.facts(), file)
        os.replace(f"{path}.part", path)

    def _read_optimizers(self) -> None:
        """Record the optimizers' settings, after the same steps in every run."""
        alive = [known() for known in self.optimizers]
        self.of_optimizers = optimizer_facts([one for one in alive if one is not None])

    def facts(self) -> dict[str, Any]:
        """Return the facts about the process as JSON, except its steps."""
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
            "loss_unseen": self.loss_unseen,
            "update_unseen": self.update_unseen,
            "updates": self.updates,
            "threads": self.torch.get_num_threads(),
            "peak_rss_bytes": peak_resident_bytes(),
            "ended": self.closed,
            **device_facts(self.torch),
            **self.of_optimizers,
            **compiler_facts(),
        }

    # The change of the weights.

    def _first_sketch(self, optimizer: Any) -> None:
        """Sketch an optimizer's weights now, and again when the optimizer is deleted.

        Weights thus live no longer than without the observer.
        """
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(id(one) not in self.names for one in parameters):
            self._look_at_modules()
        if reason := self._why_no_update(parameters):
            self.update_unseen = reason
            self.updates.clear()
            return
        if self.probe is None:
            self.probe = weakref.ref(parameters[0])
        trained: dict[str, Any] = {}
        for one in parameters:
            name = self.names[id(one)]
            known = name in self.before or name in trained
            trained[f"{name} {len(self.before) + len(trained)}" if known else name] = one
        self.before.update((n, sketch(n, p, self.torch)) for n, p in trained.items())
        self.trained.update((n, weakref.ref(p)) for n, p in trained.items())
        dtypes = {name: one.dtype for name, one in trained.items()}
        pid = self.pid
        last = weakref.finalize(optimizer, self._guarded, self._last_sketch, pid, trained, dtypes)
        self.finalizers.append(last)

    def _look_at_modules(self) -> None:
        """Name the weights of all optimizers, and note what hides losses and changes."""
        modules, optimizers = live(self.torch.nn.Module, self.torch.optim.Optimizer)
        self.names = {**names_in(modules, optimizers), **self.names}
        self.sharded = any(type(one).__name__ == "FullyShardedDataParallel" for one in modules)
        if any(map(scales_losses, modules)):
            self.loss_unseen = "DeepSpeed multiplies it by a factor of its own, for float16"

    def _why_no_update(self, parameters: list[Any]) -> str:
        """Return why the changes of weights cannot be compared; empty if they can."""
        if self.update_unseen:
            return self.update_unseen
        if self._rank_and_world()[0]:
            return "another rank keeps it"
        if self.sharded or any(hasattr(one, "full_tensor") for one in parameters):
            return "the weights lie on several ranks"
        if any(id(one) not in self.names for one in parameters):
            return "the optimizer's weights are those of no module, as with DeepSpeed's ZeRO"
        return ""

    def _early_sketch(self) -> None:
        """Sketch the changes of all weights, if none was deleted."""
        alive = {name: known() for name, known in self.trained.items()}
        if alive and all(one is not None for one in alive.values()):
            self._sketch(alive)

    def _last_sketch(self, pid: int, trained: dict[str, Any], dtypes: dict[str, Any]) -> None:
        """Sketch the changes of an optimizer's weights before they are deleted with it, unless they
        were changed since the last step, as by loading the best checkpoint."""
        if pid != os.getpid() or self.steps_unseen:
            return
        weight = self.probe()
        same = weight is None or weight._version == self.version
        if same and all(one.dtype == dtypes[name] for name, one in trained.items()):
            self._sketch(trained)
        else:
            self.update_unseen = "weights were changed after the last step"
        self.write()

    def _sketch(self, trained: dict[str, Any]) -> None:
        """Store the sketched change of weights since before the first step."""
        if self.update_unseen:
            return
        updates = self.updates.setdefault(self.count, {})
        for name, one in trained.items():
            change = sketch(name, one, self.torch) - self.before[name]
            updates[name] = {
                "elements": one.numel(),
                "dtype": str(one.dtype).replace("torch.", ""),
                "change": change.tolist(),
            }


def counts_of(batch: Any, torch: Any) -> tuple[int, int, int, int] | None:
    """Return processed, real and supervised tokens, and sequences, of a batch on the host.

    Each `*input_ids` is counted with its `*attention_mask`, and `tokens`, as torchtune names them;
    None for a batch without token ids.
    """
    if isinstance(batch, (tuple, list)):
        found = [one for one in batch if hasattr(one, "keys")]
        batch = found[0] if len(found) == 1 else batch[0] if batch and not found else None
    if batch is None or not hasattr(batch, "keys"):
        rows = is_tokens(batch, torch) and batch.dim() == 2
        return (batch.numel(),) * 3 + (batch.shape[0],) if rows else None
    processed = real = sequences = 0
    supervised = None
    for key in batch.keys():
        named = str(key).endswith("input_ids") or key == "tokens"
        if not named or not is_tokens(ids := batch[key], torch):
            continue
        mask = batch.get(str(key)[: -len("input_ids")] + "attention_mask")
        processed += ids.numel()
        whole = mask is None or mask.shape != ids.shape
        real += ids.numel() if whole else count_nonzero(mask)
        sequences += ids.shape[0]
    labels = batch.get("labels")
    if is_tokens(labels, torch):
        supervised = count_labels(labels)
    if not processed:
        return None
    return processed, real, real if supervised is None else min(supervised, real), sequences


def is_tokens(value: Any, torch: Any) -> bool:
    """Return whether a value is a tensor of token ids on the host; bytes are those of images."""
    known = isinstance(value, torch.Tensor) and value.is_cpu and value.dim() >= 2
    return known and value.dtype in (torch.int64, torch.int32)


def count_nonzero(tensor: Any) -> int:
    """Return the number of elements that are not 0."""
    numpy = sys.modules.get("numpy")
    return int(tensor.count_nonzero() if numpy is None else numpy.count_nonzero(tensor.numpy()))


def count_labels(labels: Any) -> int:
    """Return the number of labels that a causal model learns from: all but the first of each row.

    The whole tensor is compared, as a slice of it takes twice as long; numpy is faster than torch.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or labels.dim() != 2:
        return count_nonzero(labels[..., 1:] != -100)
    array = labels.numpy()
    first = array[:, 0].tolist()
    return int(numpy.count_nonzero(array != -100)) - len(first) + int(first.count(-100))


def _watch_backward(torch: Any, watch: Watch) -> None:
    """Patch `torch.autograd.backward`, which `Tensor.backward` calls, to notify the observer."""
    own = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.depth == 0:
            watch._guarded(watch.backward, tensors)
        watch.depth += 1
        try:
            return own(tensors, *args, **kwargs)
        finally:
            watch.depth -= 1

    backward.__wrapped__ = own  # type: ignore[attr-defined]
    backward._torchdynamo_disable = True  # type: ignore[attr-defined]
    backward.__doc__, backward.__name__ = own.__doc__, own.__name__
    torch.autograd.backward = backward


def _watch_scaler(torch: Any, watch: Watch) -> None:
    """Patch torch's gradient scaler to record the unscaled loss of each scaled one."""
    kind = torch.amp.grad_scaler.GradScaler
    own = kind.scale

    def scale(self: Any, outputs: Any) -> Any:
        scaled = own(self, outputs)
        if isinstance(scaled, torch.Tensor) and scaled is not outputs:
            scaled._accel_bench_unscaled = outputs.detach()
            watch.scaled = True
        return scaled

    scale.__wrapped__, scale.__doc__ = own, own.__doc__  # type: ignore[attr-defined]
    kind.scale = scale


def _watch_loader(torch: Any, watch: Watch) -> None:
    """Patch the iterators of DataLoader to notify the observer of their batches."""
    from torch.utils.data import dataloader

    kind = dataloader._BaseDataLoaderIter
    own = kind.__next__

    def fetch(self: Any) -> Any:
        reading = self.__dict__.get("_accel_bench_reading")
        if reading is None:
            reading = self._accel_bench_reading = Reading()
        watch.read(reading)
        try:
            batch = own(self)
        except StopIteration:
            reading.ended = True
            raise
        watch._guarded(watch.fetched, reading, batch)
        return batch

    kind.__next__ = kind.next = fetch


def live(*kinds: type) -> list[list[Any]]:
    """Return all objects of each class."""
    import gc

    found = [one for one in gc.get_objects() if issubclass(type(one), kinds)]
    return [[one for one in found if issubclass(type(one), kind)] for kind in kinds]


def names_in(modules: list[Any], optimizers: list[Any]) -> dict[int, str]:
    """Return names of the optimizers' weights by id, in the smallest module with most of them.

    All optimizers are asked at once: one for each weight names it as one for all weights does.
    """
    groups = [group for one in optimizers for group in getattr(one, "param_groups", ())]
    wanted = {id(weight) for group in groups for weight in group["params"]}
    tables = []
    for module in modules:
        found = {id(p): n for n, p in module.named_parameters() if id(p) in wanted}
        tables.append((-len(found), sum(1 for _ in module.modules()), found))
    names: dict[int, str] = {}
    for _, _, found in sorted(tables, key=lambda table: table[:2]):
        for weight, name in found.items():
            names.setdefault(weight, name)
    return names


def scales_losses(module: Any) -> bool:
    """Return whether a module is an engine of DeepSpeed that scales the loss itself."""
    is_engine = type(module).__module__.startswith("deepspeed.")
    return is_engine and hasattr(module, "fp16_enabled") and bool(module.fp16_enabled())


def sketch(name: str, tensor: Any, torch: Any) -> Any:
    """Return signed sums of a tensor's elements, shape (BUCKETS,), float64, on the host.

    The sign of an element depends on the tensor's name and the element's place alone, so that the
    sketches of two processes can be compared.
    """
    import zlib

    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        rows = -(-flat.numel() // ROW)
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        signs = torch.randint(0, 2, (ROW + rows,), generator=generator, dtype=torch.int8)
        signs = (signs.double() * 2 - 1).to(flat.device)
        sums = torch.zeros(ROW, dtype=torch.float64, device=flat.device)
        for first in range(0, rows, 256):
            block = flat[first * ROW : (first + 256) * ROW].double()
            whole = block.numel() // ROW
            of_rows = signs[ROW + first : ROW + first + whole + 1]
            sums += of_rows[:whole] @ block[: whole * ROW].view(-1, ROW)
            rest = block[whole * ROW :]
            if rest.numel():
                sums[: rest.numel()] += of_rows[whole] * rest
        return (sums * signs[:ROW]).view(-1, BUCKETS).sum(0).cpu()


def optimizer_facts(optimizers: list[Any]) -> dict[str, Any]:
    """Return the optimizers' classes, and their current settings by parameter."""
    facts: dict[str, Any] = {"optimizer": "+".join(type(one).__name__ for one in optimizers)}
    rates: dict[str, int] = {}
    decays: dict[str, int] = {}
    others: dict[str, dict[str, int]] = {}
    states: dict[str, int] = {}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            tensors = len(group["params"])
            for key, setting in group.items():
                on_host = getattr(setting, "is_cpu", False) and setting.numel() == 1
                value = setting.item() if on_host else setting
                if key == "params" or not isinstance(value, (int, float, tuple, list)):
                    continue
                known = {"lr": rates, "weight_decay": decays}.get(key)
                known = others.setdefault(key, {}) if known is None else known
                if key in ("lr", "weight_decay") or is_number(value):
                    text = number_text(value)
                    known[text] = known.get(text, 0) + tensors
        for state in optimizer.state.values():
            for value in state.values() if isinstance(state, dict) else ():
                if hasattr(value, "dtype") and value.dim() and value.is_floating_point():
                    dtype = str(value.dtype).replace("torch.", "")
                    states[dtype] = states.get(dtype, 0) + value.numel()
    facts["learning_rates"], facts["weight_decays"] = rates, decays
    facts["hyperparameters"] = {key: value for key, value in others.items() if value}
    facts["state_dtypes"] = states
    return facts


def is_number(value: Any) -> bool:
    """Return whether a value is a numeric optimizer setting, or a tuple of them."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return all(isinstance(one, float) and not isinstance(one, bool) for one in values)


def number_text(value: Any) -> str:
    """Return numbers as text with six digits."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return ", ".join(f"{float(one):.6g}" for one in values)


def device_facts(torch: Any) -> dict[str, Any]:
    """Return the device in use, and its allocator's peak bytes, read without synchronizing."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return {"device": "cpu"}
    return {
        "device": "cuda",
        "device_name": torch.cuda.get_device_name(),
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }


def compiler_facts() -> dict[str, Any]:
    """Return the counters of torch's compiler; empty if it is not loaded."""
    dynamo = sys.modules.get("torch._dynamo")
    counters = getattr(getattr(dynamo, "utils", None), "counters", None)
    if counters is None:
        return {}
    stats = counters.get("stats", {})
    breaks = counters.get("graph_break", {})
    return {"graphs": stats.get("unique_graphs", 0), "graph_breaks": sum(breaks.values())}


def peak_resident_bytes() -> int | None:
    """Return the peak resident memory of this process; None if unreadable."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


ROW_FORMAT = struct.Struct("=qqqqqdqq")
"""Binary format of a row in the file of steps."""
