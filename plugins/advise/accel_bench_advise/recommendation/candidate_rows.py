"""Rows and sentences of a recommendation, from ranked candidates."""

from __future__ import annotations

from accel_bench.analysis.metrics.offered_load import TAIL_LATENCY
from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.statistics.verdict import ALIKE
from accel_bench.analysis.wording import (
    alike_words,
    count,
    differs,
    duration,
    milliseconds,
    percent,
    rate,
    ratio_interval,
    size,
    with_reason,
)
from accel_bench.catalog.hardware import list_hardware
from accel_bench.documents.base import JsonValue
from accel_bench.machine.devices import HOST
from accel_bench.result import Result
from accel_bench.scenario.draft import look_up
from accel_bench_advise.recommendation.candidates import UNCOMPARED, Candidate, largest
from accel_bench_advise.recommendation.ranking import Ranked, as_fast, is_as_fast, job_time
from accel_bench_advise.recommendation.schema import (
    CandidateOutcome,
    CandidateRow,
    Evidence,
    MemoryKind,
    MemoryUse,
    OtherCandidate,
)

KEPT_SERVING = (
    "model.dtype",
    "inference.prompt_tokens",
    "inference.new_tokens",
    "inference.decoding",
    "inference.rate",
    "inference.batch_size",
    "inference.cache",
)
"""Settings of inference that a recommendation repeats as unchanged."""

KEPT = (
    "model.dtype",
    "adapter.use",
    "optimizer.use",
    "data.sequence_length",
    "train.precision",
    "train.learning_rate",
    "train.global_batch_size",
    "train.micro_batch_size",
)
"""Settings of training that a recommendation repeats as unchanged."""

MEMORY_KINDS: dict[MemoryKind, str] = {
    "rss": "resident memory of a process",
    "nvml": "of the process, as the driver sees it",
    "reserved": "reserved by torch",
    "allocated": "held by tensors",
}


def candidate_row(candidate: Candidate, tokens: float | None) -> CandidateRow:
    """Return a candidate's measured values, verdicts and evidence as a row of the document.

    `tokens` is the size of the job in real tokens; None leaves the hours out.
    """
    row, starts = candidate.row, sorted(candidate.start_seconds.values())
    usable, generates = candidate.runs.usable, candidate.experiment.scenario.generates
    return CandidateRow(
        stack=row.stack,
        sweep=row.sweep,
        tag=row.tag,
        apart=dict(candidate.runs.apart),
        changes=differs(candidate.experiment.stack),
        device=candidate.device.label,
        tokens_per_second=row.tokens_per_second if usable else None,
        request_seconds=row.request_seconds if usable else None,
        slowest_requests_ms=largest(candidate.runs, TAIL_LATENCY) if usable else None,
        start_seconds=starts[len(starts) // 2] if starts else None,
        hours=job_time(candidate, tokens).mapped(lambda s: s / 3600) if usable and tokens else None,
        ratio=row.ratio if usable else None,
        loss="" if generates else _word(candidate, row.loss_word, row.loss_reason),
        update="" if generates else _word(candidate, row.update_word, row.update_reason),
        output=_word(candidate, row.output_word, row.output_reason) if generates else "",
        memory=memory_of(candidate),
        evidence=_evidence(candidate),
    )


def others_of(ranked: Ranked, tokens: float | None) -> tuple[OtherCandidate, ...]:
    """Return all candidates but the best, with the reasons against them, the runner-up first.

    `tokens` is the size of the job in real tokens; None if unknown.
    """
    rest = [candidate for candidate in ranked.candidates if candidate is not ranked.best]
    rest.sort(key=lambda candidate: candidate is not ranked.runner_up)
    return tuple(_other(candidate, ranked, tokens) for candidate in rest)


def memory_of(candidate: Candidate) -> MemoryUse | None:
    """Return the peak memory of a device by its most inclusive measurement; None if unknown."""
    kinds: tuple[MemoryKind, ...] = ("nvml", "reserved", "allocated")
    if candidate.device.kind == HOST:
        kinds = ("rss",)
    figures = [(getattr(candidate.row.memory, kind, None), kind) for kind in kinds]
    peaks = [(figure.run_bytes or figure.bytes, kind) for figure, kind in figures if figure]
    peak, kind = next((pair for pair in peaks if pair[0]), (None, None))
    run = next(iter(candidate.runs.counted.values()), None)
    if peak is None or kind is None or run is None:
        return None
    total = _device_bytes(run, candidate)
    return MemoryUse(
        peak_bytes=peak,
        kind=kind,
        device_bytes=total,
        headroom=1 - peak / total if total else None,
    )


def kept_settings(candidate: Candidate) -> dict[str, JsonValue]:
    """Return the scenario's main settings, by dotted key, that neither stack nor sweep changes."""
    scenario = candidate.experiment.scenario.model_dump(mode="json")
    changed = {*candidate.experiment.stack.settings, *candidate.experiment.sweep}
    keys = KEPT_SERVING if candidate.experiment.scenario.generates else KEPT
    values = {key: look_up(scenario, key)[1] for key in keys}
    return {key: value for key, value in values.items() if key not in changed and value is not None}


def answer_of(ranked: Ranked, tokens: float | None) -> str:
    """Return sentences that recommend the best candidate by its measured runs.

    `tokens` is the size of the job in real tokens; None leaves the job's time out.
    """
    best = ranked.best
    assert best is not None
    parts = [f"Use {best.name} on {best.device.label}: {_speed(best)}, {_trained(best)}"]
    if slowest := largest(best.runs, TAIL_LATENCY):
        parts.append(f"in its worst run 99 of 100 requests took at most {slowest:,.4g} ms")
    if memory := memory_of(best):
        left = memory.headroom
        more = "" if left is None else f", {percent(max(0.0, left))} are left"
        parts.append(f"it needs {memory_words(memory)}{more}")
    text = "; ".join(parts) + "."
    if tokens:
        text += f" The job takes {_duration_words(best, tokens)}."
    return f"{text} {_runner_up(ranked, tokens)}".strip()


def _speed(best: Candidate) -> str:
    speed, latency = best.row.tokens_per_second, best.row.request_seconds
    assert speed is not None
    text = f"{rate(speed.median)} tokens/s"
    if latency is not None:
        seconds = milliseconds(latency.median)
        text = f"the median of {best.runs.rate:g} requests/s is answered in {seconds} ms"
    if best.is_baseline:
        return f"{text}, the baseline"
    if best.row.ratio is None:
        return text
    return f"{text}, {ratio_interval(best.row.ratio)} times as fast as the baseline"


def _trained(best: Candidate) -> str:
    if best.lone:
        return UNCOMPARED
    what = "answers" if best.experiment.scenario.generates else "loss"
    if best.is_baseline:
        return f"with the {what} that the others were compared with"
    row = best.row
    if row.generated:
        return f"with an output that is {row.output_word}"
    words = {"loss": row.loss_word, "update": row.update_word}
    others = [f"its {name}: {word}" for name, word in words.items() if word not in ALIKE]
    return ", ".join([*alike_words(words), *others])


def memory_words(memory: MemoryUse) -> str:
    """Return text such as `538 MiB (resident memory of a process) of the host's 23.5 GiB`."""
    text = f"{size(memory.peak_bytes)} ({MEMORY_KINDS[memory.kind]})"
    if memory.device_bytes is None:
        return text
    whose = "host" if memory.kind == "rss" else "device"
    return f"{text} of the {whose}'s {size(memory.device_bytes)}"


def _duration_words(best: Candidate, tokens: float) -> str:
    seconds = job_time(best, tokens)
    ends = [end for end in (seconds.low, seconds.high) if end is not None]
    interval = f" [{', '.join(duration(end) for end in ends)}]" if ends else ""
    return f"{duration(seconds.median)}{interval} for {tokens:,.0f} tokens, its start included"


def _runner_up(ranked: Ranked, tokens: float | None) -> str:
    best, other = ranked.best, ranked.runner_up
    if best is None or other is None:
        return "Nothing else that was measured may take its place."
    ratio = as_fast(other, best, tokens)
    if ratio is None:
        return f"The runner-up is {other.name}."
    words = f"The runner-up is {other.name}, {ratio_interval(ratio)} times as fast"
    if ranked.sure:
        return f"{words}."
    rounds = count(len(best.runs.speeds), "round")
    return f"{words}: on {rounds} it cannot be told for sure which is faster."


def _other(one: Candidate, ranked: Ranked, tokens: float | None) -> OtherCandidate:
    best = ranked.best
    ratio = as_fast(one, best, tokens) if best and one.runs.usable else None
    if one.outcome is not None:
        outcome, why = one.outcome, one.obstacle
    else:
        assert best is not None
        outcome, why = _behind(one, best, ratio, tokens)
    return OtherCandidate(
        outcome="runner-up" if one is ranked.runner_up else outcome,
        why=why,
        of_the_best=ratio,
        row=candidate_row(one, tokens),
    )


def _behind(
    one: Candidate, best: Candidate, ratio: Interval | None, tokens: float | None
) -> tuple[CandidateOutcome, str]:
    """Return why the eligible candidate `one` is not the best: its outcome and a reason in words.

    `ratio` is its speed relative to the best for the job of `tokens` tokens.
    """
    by_step = as_fast(one, best, None)
    if tokens and by_step and by_step.low is not None and by_step.low > 1:
        why = "its steps are faster; its start costs more than they save in this job"
        return "does not pay", why
    if is_as_fast(one, best, tokens):
        less = ", which changes less" if one.size > best.size else ""
        return "no difference", f"within 2 % of the recommended one{less}"
    surely = ratio is not None and ratio.high is not None and ratio.high < 1
    sure = f"slower, by an interval of {ratio.confidence:.0%}" if surely and ratio else ""
    return "slower", sure or "seems slower, and may not be"


def _word(candidate: Candidate, verdict: str, reason: str) -> str:
    return "the baseline" if candidate.is_baseline else with_reason(verdict, reason)


def _evidence(candidate: Candidate) -> Evidence:
    runs = list(candidate.runs.counted.values())
    exported = any(run.provenance.origin == "exported" for run in runs)
    return Evidence(
        experiment_id=candidate.experiment.id,
        run_ids=tuple(run.run_id for run in runs),
        sessions=tuple(dict.fromkeys(run.session for run in runs)),
        origin="exported" if exported else "measured",
    )


def _device_bytes(run: Result, candidate: Candidate) -> int | None:
    """Return the memory size in bytes of a device that a run used, or of the host on a CPU.

    None if it is unknown.
    """
    machine = run.machine
    if candidate.device.kind == HOST:
        return machine.memory_bytes if machine else None
    uuids = {rank.device.uuid for rank in run.ranks if rank.device}
    own = [gpu.memory_bytes for gpu in (machine.gpus if machine else ()) if gpu.uuid in uuids]
    known = list_hardware().get(candidate.device.name)
    return min(own) if own else known.memory_bytes if known else None
