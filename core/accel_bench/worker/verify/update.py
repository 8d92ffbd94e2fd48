"""Sketches of the change of each trained tensor in training: a few dozen numbers for each tensor.

A sketch sums a tensor's elements in buckets, each element with a random sign that depends only on
the tensor's name and the element's index (Charikar, Chen and Farach-Colton, 2002). It is linear:
the sketch after training less the sketch before is the sketch of the change. So no copy of the
weights is kept. The squared difference of two sketches estimates the squared distance of changes.

The exact change is written to a file in the run's folder, if there is room. The file has the
numbers of all trained tensors one after the other, in float32: first the weights before training,
then the change in their place. A copy in memory would count as the run's memory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from accel_bench.analysis.wording import size
from accel_bench.effective import plain_name
from accel_bench.job import BYTES_OF_A_CHANGE, SPARE_DISK_BYTES
from accel_bench.modeling.kept_elsewhere import elements_of
from accel_bench.modeling.random_weights import seed_of
from accel_bench.modeling.sharding import whole
from accel_bench.modeling.tensors import has_values
from accel_bench.result import SKETCH_BUCKETS, TensorUpdate, WeightUpdate
from accel_bench.run_context import Run

ROW = SKETCH_BUCKETS * 131
"""Number of elements in a row, which has one random sign. Both factors are prime, so that a row of
a matrix with a round width is spread over many buckets."""

BLOCK_ROWS = 256
"""Number of rows read together: 8 MB in float64."""

BLOCK = 1 << 20
"""Number of elements read together: 8 MB in float64."""


class UpdateSketch:
    """Sketches of a run's trained tensors, made on creation and again when `finish` is called.

    Both are made outside of measured windows. Trained tensors are tensors that require a gradient
    on creation; sharded tensors are gathered one after the other.
    """

    def __init__(self, run: Run, file: Path | None = None, most: int = 0) -> None:
        """Sketch the weights; rank 0 also writes them to `file`, if `most` bytes suffice."""
        started = time.perf_counter()
        self._run = run
        self._finished = False
        trained = {name: p for name, p in _parameters(run) if p.requires_grad}
        self._elements = {name: elements_of(p) for name, p in trained.items()}
        keeps = file is not None and most > 0 and run.rank == 0 and bool(trained)
        self._kept = UpdateFileWriter(file, self._elements, most) if file and keeps else None
        self._before = {name: self._read_start(name, p) for name, p in trained.items()}
        if self._kept:
            self._kept.sync()
        self._seconds = time.perf_counter() - started

    def finish(self, steps: int) -> WeightUpdate:
        """Return the change of weights in `steps` steps, without deleted or infinite tensors.

        Ranks other than the first return no tensors, only sketches of all weights together.
        """
        started = time.perf_counter()
        trained = [(name, p) for name, p in _parameters(self._run) if name in self._before]
        now, norms = {}, {}
        for name, parameter in trained:
            now[name], norms[name] = self._read_end(name, parameter)
        tensors = {
            name: TensorUpdate(
                elements=self._elements[name], sketch=_numbers(change), norm=norms[name]
            )
            for name, after in now.items()
            if bool((change := after - self._before[name]).isfinite().all())
        }
        kept_bytes, kept_reason = self._finish_file(complete=len(tensors) == len(self._before))
        return WeightUpdate(
            steps=steps,
            trained_tensors=len(self._before),
            trained_elements=sum(self._elements.values()),
            tensors=tensors if self._run.rank == 0 else {},
            weights=_together(now),
            weights_before=_together(self._before),
            seconds=self._seconds + time.perf_counter() - started,
            kept_bytes=kept_bytes,
            kept_reason=kept_reason,
        )

    def close(self) -> None:
        """Remove the file of weights if the run ended before their change was read."""
        if self._kept and not self._finished:
            self._kept.remove("the run ended before")

    @torch.no_grad()
    def _read_start(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        weights = whole(parameter).detach()
        if self._kept:
            self._kept.write(name, weights)
        return sketch(name, weights)

    @torch.no_grad()
    def _read_end(self, name: str, parameter: torch.Tensor) -> tuple[torch.Tensor, float | None]:
        """Return a parameter's sketch, and the L2 norm of its change, or None without a file."""
        weights = whole(parameter).detach()
        if self._kept and weights.numel() != self._elements[name]:
            self._kept.remove(f"{name} has another shape than before")
        return sketch(name, weights), self._kept.subtract(name, weights) if self._kept else None

    def _finish_file(self, *, complete: bool) -> tuple[int, str]:
        """Close the file, or remove it unless it is `complete`; return its size in bytes, and the
        reason if it was removed."""
        self._finished = True
        if self._kept is None:
            return 0, ""
        if not complete:
            self._kept.remove("a tensor is gone, or not finite")
        self._kept.sync()
        self._kept.close()
        return 0 if self._kept.reason else self._kept.bytes, self._kept.reason


class UpdateFileWriter:
    """Writer of a file of a run's weights, then of their change; an error removes the file."""

    def __init__(self, path: Path, elements: Mapping[str, int], most: int) -> None:
        """Open a file of at most `most` bytes for tensors; `elements` has the number of elements of
        each tensor by name."""
        self.bytes = 0
        self.reason = ""
        self._path = path
        self._places: dict[str, int] = {}
        for name, count in elements.items():
            self._places[name] = self.bytes
            self.bytes += count * BYTES_OF_A_CHANGE
        with self._removed_on_error():
            room = shutil.disk_usage(path.parent).free - SPARE_DISK_BYTES
            self._file = path.open("x+b")
        if not self.reason and self.bytes > (most := max(0, min(most, room))):
            self.remove(f"it takes {size(self.bytes)}, and {size(most)} may be used")

    def write(self, name: str, weights: torch.Tensor) -> None:
        """Write the weights of tensor `name`, before training, to the file."""
        if weights.dtype == torch.float64:
            self.remove(f"{name} is float64, which a file in float32 cannot hold")
        if self.reason:
            return
        with self._removed_on_error():
            self._file.seek(self._places[name])
            for block in weights.reshape(-1).split(BLOCK):
                self._file.write(block.float().cpu().numpy().data)

    def sync(self) -> None:
        """Write buffered data to the disk now, so that this does not disturb the window."""
        if self.reason:
            return
        with self._removed_on_error():
            self._file.flush()
            os.fsync(self._file.fileno())

    def subtract(self, name: str, weights: torch.Tensor) -> float | None:
        """Replace a tensor's old weights in the file by their change; return the change's L2 norm.

        Returns None if the file was removed.
        """
        if self.reason or not weights.numel():
            return None if self.reason else 0.0
        place, squares = self._places[name], 0.0
        with self._removed_on_error():
            for block in weights.reshape(-1).split(BLOCK):
                self._file.seek(place)
                content = bytearray(self._file.read(block.numel() * BYTES_OF_A_CHANGE))
                change = block.cpu().double() - torch.frombuffer(content, dtype=torch.float32)
                squares += float(change.square().sum())
                self._file.seek(place)
                self._file.write(change.float().numpy().data)
                place += len(content)
        return None if self.reason else float(squares**0.5)

    def remove(self, reason: str) -> None:
        """Remove the file, and store the reason unless there is an earlier one."""
        self.reason = self.reason or reason
        self.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Close the file without removing it."""
        if hasattr(self, "_file"):
            with contextlib.suppress(OSError):
                self._file.close()

    @contextlib.contextmanager
    def _removed_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.remove(f"it could not be written: {error.strerror or error}")


@torch.no_grad()
def sketch(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's sketch of SKETCH_BUCKETS float64 numbers on the CPU; `name` seeds signs."""
    flat = whole(tensor).detach().reshape(-1)
    rows = -(-flat.numel() // ROW)
    signs = _signs(name, ROW + rows).to(flat.device)
    columns, of_rows = signs[:ROW], signs[ROW:]
    sums = torch.zeros(ROW, dtype=torch.float64, device=flat.device)
    for first in range(0, rows, BLOCK_ROWS):
        block = flat[first * ROW : (first + BLOCK_ROWS) * ROW].double()
        whole_rows = block.numel() // ROW
        sums += of_rows[first : first + whole_rows] @ block[: whole_rows * ROW].view(-1, ROW)
        rest = block[whole_rows * ROW :]
        if rest.numel():
            sums[: rest.numel()] += of_rows[first + whole_rows] * rest
    return (sums * columns).view(-1, SKETCH_BUCKETS).sum(0).cpu()


def _signs(name: str, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed_of(0, name))
    bits = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8)
    return bits.double() * 2 - 1


def _parameters(run: Run) -> Iterator[tuple[str, Any]]:
    """Yield the model's floating-point parameters, each with its name without wrappers' names."""
    for name, parameter in run.unwrapped_model.named_parameters():
        if parameter.is_floating_point() and has_values(parameter):
            yield plain_name(name), parameter


def _together(sketches: Mapping[str, torch.Tensor]) -> tuple[float, ...]:
    """Return the sum of all tensors' sketches, with NaN and infinity replaced by finite numbers."""
    total = sum(sketches.values(), torch.zeros(SKETCH_BUCKETS, dtype=torch.float64))
    return _numbers(total.nan_to_num())


def _numbers(values: torch.Tensor) -> tuple[float, ...]:
    """Return values as floats with seven significant digits, as results store them."""
    return tuple(float(f"{value:.7g}") for value in values.tolist())
