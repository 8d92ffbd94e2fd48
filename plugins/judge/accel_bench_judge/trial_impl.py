"""Trial of a judged step: fresh weights and batches, a process that is asked for steps, a record of
its answers, and the comparison with the reference once the process has ended."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from accel_bench.errors import InvalidRunError
from accel_bench_judge.comparison_impl import Judgement, StepRecord, compare
from accel_bench_judge.confinement import Confinement
from accel_bench_judge.shared_impl import attach, copy_to, lay_out, state_of
from accel_bench_judge.step_files import REFERENCE, load_steps
from accel_bench_judge.subject import STOPPING_SECONDS, Starter, Subject, Usage, start_program
from accel_bench_judge.subject_impl import ANSWER, COUNTED, STEP

MOST_RECORDED_BYTES = 4 * 2**30
"""Maximum bytes of the weights recorded after all steps of a trial."""

BUSY_SECONDS = 0.02
"""CPU seconds that ended processes may use during measured steps; the kernel counts in 0.01 s."""

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Seals that fix the size of the shared memory: reading beyond its end would kill the judge."""


class Trial:
    """Process that runs a judged training step again and again, and the record of its answers."""

    def __init__(
        self,
        reference: str,
        file: str,
        cache: Path,
        *,
        start: Starter = start_program,
        fewer_flops: bool = False,
    ) -> None:
        self._fewer_flops = fewer_flops
        self.reference: ModuleType = load_steps(reference, REFERENCE)
        self.generator = torch.Generator().manual_seed(_secret())
        torch.manual_seed(_secret())
        self.initial = {
            name: tensor.detach().clone()
            for name, tensor in state_of(self.reference.make_model()).items()
        }
        batch = self._unknown_batch()
        state, middle = lay_out(self.initial.items(), 0)
        inputs, end = lay_out(batch.items(), middle)
        self._memory = os.memfd_create("accel-bench-judge", os.MFD_ALLOW_SEALING)
        os.ftruncate(self._memory, max(end, 1))
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, SEALS)
        self._mapped = mmap.mmap(self._memory, max(end, 1))
        self._records = attach(self._mapped, state)
        self._inputs = attach(self._mapped, inputs)
        self._outputs = torch.frombuffer(self._mapped, dtype=torch.uint8)[:middle]
        copy_to(self.initial, self._records)
        self._scratch = tempfile.TemporaryDirectory(prefix="accel-bench-judge-")
        cache.mkdir(parents=True, exist_ok=True)
        settings = {
            "reference": reference,
            "file": file,
            "state": state,
            "batch": inputs,
            "bytes": max(end, 1),
            "folders": [self._scratch.name, str(cache)],
        }
        self.steps: list[StepRecord] = []
        self._next = batch
        self._asked: dict[str, torch.Tensor] = {}
        self._before: Usage | None = None
        self._reasons: list[str] = []
        self._ended = False
        self._subject = Subject(settings, self._memory, start)
        try:
            _, landlock, filtered = ANSWER.unpack(self._subject.wait())
            self.confinement = Confinement(int(landlock), bool(filtered))
            self._subject.wait()
            self._subject.freeze()
        except BaseException:
            self.end()
            raise

    def count(self) -> None:
        """Take the first step, whose FLOPs are counted and which is not timed."""
        self.begin()
        self.keep(self.ask(COUNTED))

    def begin(self) -> None:
        """Write the next step's batch to the shared memory while the process is stopped."""
        self._asked, self._next = self._next, self._draw()
        copy_to(self._asked, self._inputs)

    def ask(self, request: bytes = STEP) -> bytes:
        """Let the process take one timed step, and return its answer once it is stopped."""
        return self._subject.ask(request)

    def keep(self, answer: bytes) -> float:
        """Stop the process and its descendants, record an answer and the weights in shared memory,
        and return the loss.

        Raises InvalidRunError if the records of all steps need more than 4 GiB.
        """
        self._subject.freeze()
        _, loss, flops = ANSWER.unpack(answer)
        weights = {name: record.clone() for name, record in self._records.items()}
        self._outputs.fill_(0xFF)  # not a number: weights that live here would be lost
        self.steps.append(StepRecord(self._asked, loss, weights, flops))
        size = sum(tensor.numel() * tensor.element_size() for tensor in weights.values())
        if size * len(self.steps) > MOST_RECORDED_BYTES:
            raise InvalidRunError(["the weights of all steps need more than 4 GiB"])
        return loss

    def watch(self) -> None:
        """Stop the step's other processes for good, and begin to watch their use of the CPU. Only
        the first call has an effect."""
        if self._before is None:
            self._before, self._subject.alone = self._subject.others_usage(), True

    def end(self) -> None:
        """End the process and free the shared memory. Only the first call has an effect."""
        if self._ended:
            return
        self._ended = True
        try:
            self._subject.check_stillness()
        except InvalidRunError as error:
            self._reasons += error.reasons
        if self._before is not None:
            self._reasons += _computing(self._before, self._subject.others_usage())
        if not self._subject.end():
            self._reasons.append("processes that the step has started could not be ended")
        self._scratch.cleanup()
        os.close(self._memory)

    def judge(self) -> Judgement:
        """Return the comparison of all steps with the reference. Raises InvalidRunError if the
        training differs."""
        compared = compare(self.reference, self.initial, self.steps, self._fewer_flops)
        if reasons := [*self._reasons, *compared.reasons]:
            raise InvalidRunError(reasons)
        return compared

    def _unknown_batch(self) -> dict[str, Any]:
        """Return the first batch. Raises InvalidRunError if the reference's `make_batch` ignores
        its generator or uses other random numbers."""
        seed, other = _secret(), _secret()
        first, again, another = (self._draw(number) for number in (seed, seed, other))
        if not _equal(first, again) or _equal(first, another):
            raise InvalidRunError(
                ["make_batch draws from something else than its generator: a step could know it"]
            )
        return self._draw()

    def _draw(self, seed: int | None = None) -> dict[str, Any]:
        """Return the next batch, a mapping of names to tensors, whose shapes never change.

        Each batch has a new seed, since a generator's earlier numbers reveal its later ones. A
        given `seed` is used instead. Raises InvalidRunError if the shapes change.
        """
        seed = _secret() if seed is None else seed
        self.generator.manual_seed(seed)
        torch.manual_seed(seed + 1)
        batch = self.reference.make_batch(self.generator)
        shapes = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.items()]
        if getattr(self, "_shapes", shapes) != shapes:
            raise InvalidRunError(["make_batch returns batches of different shapes"])
        self._shapes = shapes
        return dict(batch)


def _equal(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def _computing(before: Usage, after: Usage) -> list[str]:
    """Return a list with a reason if other processes computed between two readings, or []."""
    faults, seconds, ended = (new - old for old, new in zip(before, after, strict=True))
    used = seconds + ended  # one that ends goes from the first sum to the second
    if faults <= 0 and seconds <= STOPPING_SECONDS and used <= BUSY_SECONDS:
        return []
    return [
        f"processes that the step has started used {used:.2g} s of the CPU, with {faults} page "
        "faults, in the measured steps; a step computes in its own process"
    ]


def _secret() -> int:
    return int.from_bytes(os.urandom(7), "big")
