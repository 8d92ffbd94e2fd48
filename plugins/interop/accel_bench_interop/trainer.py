"""Reader of the Hugging Face Trainer's files: `all_results.json` and `trainer_state.json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accel_bench.interchange import Format, ImportedRow, SourceFile
from accel_bench.result import Metric
from accel_bench_interop import parse

STATE = "trainer_state.json"

RESULTS = ("all_results.json", "train_results.json", "eval_results.json")
"""Names of result files, the most complete first."""

KNOWN: Mapping[str, tuple[str, ...]] = {
    "train_samples_per_second": ("samples_per_second", "1/s", "global", "higher"),
    "train_steps_per_second": ("steps_per_second", "1/s", "global", "higher"),
    "train_tokens_per_second": ("tokens_per_second_per_device", "1/s", "device", "higher"),
    "train_loss": ("mean_loss", "1", "global", "lower"),
    "eval_loss": ("eval_loss", "1", "global", "lower"),
    "eval_samples_per_second": ("eval_samples_per_second", "1/s", "global", "higher"),
    "total_flos": ("total_floating_point_operations", "1", "global"),
    "num_input_tokens_seen": ("input_tokens", "1", "global"),
    "epoch": ("epochs", "1", "global"),
}
"""Figures by Trainer's key: name, unit, scope, and better direction."""

PER_DEVICE = (
    "tokens/s is that of one device: the Trainer counts the tokens of its own batches, padding "
    "included, and divides by the whole of train_runtime, first steps included"
)
LOGGED_LOSS = "a loss of the log is the mean of the steps since the entry before it"
MEAN_LOSS = "train_loss is the mean over all steps, not the last loss"

STAGES = ("before_init_mem_gpu", "init_mem_gpu", "train_mem_gpu")
"""Trainer's stages, whose changes of allocated memory add up."""


def is_results(source: SourceFile) -> bool:
    """Return whether a file has metrics of the Trainer."""
    document = source.json
    return document is not None and bool({"train_runtime", "eval_runtime"} & document.keys())


def is_state(source: SourceFile) -> bool:
    """Return whether a file has the form of the Trainer's `trainer_state.json`."""
    return source.json is not None and isinstance(source.json.get("log_history"), list)


def is_repeated(source: SourceFile) -> str:
    """Return why a file is skipped (a fuller file beside it, or a checkpoint), else empty text."""
    name, folder = source.path.name, source.path.parent
    fuller = RESULTS if name == STATE else RESULTS[:1] if name in RESULTS[1:] else ()
    for file in fuller:
        if (folder / file).is_file():
            return f"{file} beside it is imported, and holds it"
    if name == STATE and folder.name.startswith("checkpoint-"):
        return "it is the state of a checkpoint, in the middle of a run"
    return ""


def read_results(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield the run of a result file, with the log of the state file in its folder."""
    document = source.json
    state = source.beside(STATE)
    log = state.json if state and is_state(state) else {}
    yield _row(source, {**_summary_of(log), **document}, log)


def read_state(source: SourceFile) -> Iterator[ImportedRow]:
    """Yield the run of a Trainer's state file: its log, with the summary at the log's end."""
    yield _row(source, _summary_of(source.json), source.json)


def _row(source: SourceFile, found: Mapping[str, Any], state: Mapping[str, Any]) -> ImportedRow:
    log, corrections = _log(state), [MEAN_LOSS] if "train_loss" in found else []
    corrections += [LOGGED_LOSS] if log else []
    metrics = parse.figures(found, KNOWN)
    if "train_tokens_per_second" in found:
        corrections.append(PER_DEVICE)
    if (peak := peak_allocated(found)) is not None:
        metrics.append(peak)
        corrections.append(
            "peak memory is the largest sum of the changes of all stages up to one and that "
            "stage's peak; it is rank 0's"
        )
    name = source.path.resolve().parent.name
    return ImportedRow(
        key=source.path.name,
        scenario=name or "trainer",
        stack="trainer",
        settings=parse.settings(
            state, {"train.micro_batch_size": ("train_batch_size", parse.positive_integer)}
        ),
        metrics=[*metrics, *_ends(log)],
        corrections=corrections,
        series=log,
        seconds=parse.number(found.get("train_runtime")),
    )


def peak_allocated(found: Mapping[str, Any]) -> Metric | None:
    """Return the peak of allocated bytes, from the memory figures of all stages by Trainer's key.

    Returns None if the figures of a stage are missing.
    """
    level, peaks = 0.0, []
    for stage in STAGES:
        change = parse.number(found.get(f"{stage}_alloc_delta", found.get(stage)))
        if change is None:
            return None
        level += change
        peaks.append(level + (parse.number(found.get(f"{stage}_peaked_delta")) or 0.0))
    return parse.figure("peak_memory_bytes", int(max(peaks)), "bytes", "device", "lower")


def _summary_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log entry that summarizes the training; empty if there is none."""
    entries = [entry for entry in state.get("log_history", ()) if isinstance(entry, dict)]
    return next((entry for entry in reversed(entries) if "train_runtime" in entry), {})


def _log(state: Mapping[str, Any]) -> dict[str, list[float | None]]:
    """Return lists under `step` and `loss`; a loss is the mean since the previous log entry."""
    entries = [
        entry
        for entry in state.get("log_history", ())
        if isinstance(entry, dict) and "loss" in entry
    ]
    if not entries:
        return {}
    return {key: [parse.number(entry.get(key)) for entry in entries] for key in ("step", "loss")}


def _ends(log: Mapping[str, Sequence[float | None]]) -> Iterator[Metric]:
    if losses := log.get("loss"):
        yield parse.figure("first_loss", losses[0], "1", "global", "lower")
        yield parse.figure("last_loss", losses[-1], "1", "global", "lower")


RESULTS_FORMAT = Format(
    description="all_results.json of the Hugging Face Trainer",
    recognizes=is_results,
    read=read_results,
    repeats=is_repeated,
)

STATE_FORMAT = Format(
    description="trainer_state.json of the Hugging Face Trainer",
    recognizes=is_state,
    read=read_state,
    repeats=is_repeated,
)
