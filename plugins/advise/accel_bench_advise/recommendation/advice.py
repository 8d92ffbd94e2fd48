"""Advice on memory, convergence and idle devices, derived from candidates' rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accel_bench.analysis.wording import join_names, percent, significant
from accel_bench.machine.devices import HOST
from accel_bench.result import Status
from accel_bench_advise.estimates.schema import LengthSummary
from accel_bench_advise.recommendation.candidate_rows import memory_of, memory_words
from accel_bench_advise.recommendation.candidates import Candidate
from accel_bench_advise.recommendation.ranking import Ranked

LITTLE_HEADROOM = 0.1
"""Free fraction of a device below which a longer sample or fragmentation may end a job."""

MUCH_HEADROOM = 0.5
"""Free fraction of a GPU from which a larger micro-batch is worth a trial."""

WAITING_FOR_DATA = 0.1
"""Fraction of a step spent waiting for data from which advice is given."""

LOW_MFU = 0.2
"""MFU below which a GPU counts as idle."""

PADDING_APART = 0.05
"""Difference of padding fractions between stored runs and the job above which advice warns."""

FIT_FIRST = (
    "fit first, then fast: train.gradient_checkpointing=true; a smaller train.micro_batch_size "
    "with the same train.global_batch_size; model.dtype=bfloat16; adapter.use=lora (the last two "
    "change the training)"
)
"""Changes to try if memory is insufficient, the least change of the training first."""


def advice(ranked: Ranked, lengths: LengthSummary | None) -> Iterator[str]:
    """Yield sentences of advice: on memory first, then the loss, idle devices and sample lengths.

    `lengths` summarizes the job's sample lengths; None leaves advice on them out.
    """
    yield from _out_of_memory(ranked)
    best = ranked.best
    if best is None:
        return
    yield from _headroom(best, ranked.candidates)
    yield from _convergence(best)
    yield from _idle(best)
    if lengths is not None:
        yield from _lengths(best, lengths)


def _out_of_memory(ranked: Ranked) -> Iterator[str]:
    failed = [
        candidate for candidate in ranked.refused if candidate.runs.ending.status is Status.OOM
    ]
    if not failed:
        return
    phases = {
        run.phase for candidate in failed for run in candidate.runs.counted.values() if run.phase
    }
    where = f" ({join_names(sorted(phases))})" if phases else ""
    names = join_names([candidate.name for candidate in failed])
    yield f"out of memory: {names}{where}"
    if ranked.best is None:
        yield FIT_FIRST


def _headroom(best: Candidate, candidates: Sequence[Candidate]) -> Iterator[str]:
    memory = memory_of(best)
    if memory is None or memory.headroom is None:
        return
    if memory.headroom < LITTLE_HEADROOM:
        yield (
            f"memory: {memory_words(memory)} are used; a longer sample, an evaluation or "
            "a checkpoint may not fit beside it"
        )
    batches = [candidate.experiment.scenario.train.micro_batch_size for candidate in candidates]
    own = best.experiment.scenario.train
    room = best.device.kind != HOST and memory.headroom > MUCH_HEADROOM
    if room and own.micro_batch_size == max(batches) and own.gradient_accumulation > 1:
        yield (
            f"memory: {percent(memory.headroom)} of the device are free; a larger "
            "train.micro_batch_size with the same train.global_batch_size was not measured"
        )


def _convergence(best: Candidate) -> Iterator[str]:
    loss = best.row.loss
    if loss is None or loss.first is None or loss.last is None or loss.last < loss.first:
        return
    steps = loss.last_step + 1
    yield (
        f"convergence: the loss did not fall in {steps} steps ({significant(loss.first, 4)} to "
        f"{significant(loss.last, 4)}): check train.learning_rate "
        f"({best.experiment.scenario.train.learning_rate:g}) before the speed"
    )


def _idle(best: Candidate) -> Iterator[str]:
    phases, used = best.row.phases, best.row.utilization
    waiting = phases.data / phases.step_seconds if phases and phases.data else 0.0
    if waiting > WAITING_FOR_DATA:
        yield f"idle: {percent(waiting)} of a step are spent on getting its batch"
    if used and used.mfu and used.mfu.causal < LOW_MFU:
        yield (
            f"idle: {percent(used.mfu.causal)} of the device's peak are used (MFU); larger "
            "micro-batches, longer or packed samples keep it busier"
        )


def _lengths(best: Candidate, lengths: LengthSummary) -> Iterator[str]:
    length = best.experiment.scenario.data.sequence_length
    if lengths.truncated_fraction:
        yield (
            f"lengths: {length:,} tokens cut {percent(lengths.truncated_fraction)} of the samples; "
            f"the longest has {lengths.longest:,}, and memory for it was not measured"
        )
    tokens = best.row.tokens
    if tokens is None:
        return
    padding = 1 - tokens.per_step_global.real / tokens.per_step_global.processed
    if padding and abs(padding - lengths.padding_fraction) > PADDING_APART:
        yield (
            f"lengths: {percent(padding)} of the measured tokens are padding, and "
            f"{percent(lengths.padding_fraction)} of your padded samples' would be: speeds of real "
            "tokens differ by that"
        )
