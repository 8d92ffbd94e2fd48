"""Judge the document of each section: return a verdict, and a line of text about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

RECORDED = (0.9, 1.5)
"""Least and largest recorded step over the measured one: a step of seconds hides the profiler."""


def judge_correctness(document: Any) -> tuple[bool, str]:
    """Pass if the harness never synchronizes in the window, and the loss falls."""
    passed = document["loss_falls"] and document["harness_adds_synchronisations"] == 0
    line = (
        f"{document['device']}: loss {document['loss_first']:.3f} -> {document['loss_last']:.3f}; "
        f"synchronisations in the window: {document['in_window']} by the stopwatch, "
        f"{document['implicit_engine']} with the engine, {document['implicit_bare']} without; "
        f"in error mode: {document['error_mode']}"
    )
    return passed, line


def judge_comparison(document: Any) -> tuple[bool, str]:
    """Pass if every stack has run or was skipped."""
    rows = document["experiments"]
    passed = bool(rows) and all(one["status"] in ("ok", "degraded", "skipped") for one in rows)
    return passed, "; ".join(map(describe_comparison, rows))


def describe_comparison(one: Any) -> str:
    """Summarize one row of a comparison."""
    speed, loss, memory = one["tokens_per_second"], one["loss"], one["peak_memory_bytes"]
    words = [f"{one['stack']}: {one['status']}"]
    if speed and loss and one["ratio"]:
        words.append(f"{speed['median']:,.0f} tokens/s ({one['ratio']['median']:.3f}x)")
        words.append(f"loss {loss['first']:.3f} -> {loss['last']:.3f}")
    if memory:
        words.append(f"{memory / 2**30:.2f} GiB")
    return ", ".join([*words, *(one["reasons"] if not speed else ())])


def judge_profile(document: Any) -> tuple[bool, str]:
    """Pass if every run has recorded kernels, on a GPU with their launches, and left its traces.

    There recorded steps take about as long as those of the measured window: else they show others.
    """
    rows = document["profiles"]
    ranks = [rank for one in rows for rank in one["ranks"]]
    complete = all(rank["kernels"] and rank["traces"] and not rank["warnings"] for rank in ranks)
    on_gpu = [rank["host"] for rank in ranks if rank["device"] == "cuda" and rank["host"]]
    launched = all(host["measures"] == "device idle" and host["launches"] for host in on_gpu)
    times = [longer_while_recorded(rank) for rank in ranks]
    alike = all(
        time is not None and RECORDED[0] <= time <= RECORDED[1]
        for time, rank in zip(times, ranks, strict=True)
        if rank["device"] == "cuda"
    )
    passed = bool(ranks) and all(one["status"] == "ok" for one in rows)
    answers = "; ".join(f"{one['stack']}: {one['answer']}" for one in rows)
    said = ", ".join("unknown" if time is None else f"{time:.2f}" for time in times)
    return (
        passed and complete and launched and alike,
        f"{answers}; recorded over measured steps: {said}",
    )


def longer_while_recorded(rank: Any) -> float | None:
    """Return a rank's recorded step over its measured one; None where either is not known."""
    recorded, measured = rank["step_seconds"], rank["window_step_seconds"]
    return recorded / measured if recorded and measured else None


def judge_parts(document: Any) -> tuple[bool, str]:
    """Pass if all was recorded; on a CPU if memory was, and Nsight's marks say what they lack."""
    memory, fields, nsight = document["memory"], document["fields"], document["nsight"]
    on_gpu = document["device_type"] == "cuda"
    followed = all(one["peak_bytes"] and one["saved_bytes"] for one in memory)
    snapshots = [one["snapshot_bytes"] for one in memory]
    unread = [one for one in fields if one["readings"] < 2]
    marked = nsight["exit_code"] == 0 and not nsight["warnings"] and any(nsight["steps"])
    recorded = bool(nsight["reports"]) or not nsight["nsys"]
    refused = any("CUDA" in text for text in nsight["warnings"])
    complete = all(snapshots) and not unread and marked and recorded
    passed = document["exit_code"] == 0 and bool(memory and fields) and followed
    texts = [
        f"peak {one['peak_bytes'] / 2**20:,.0f} MiB, {one['saved_bytes'] / 2**20:,.1f} MiB saved "
        f"by {one['saving_modules']} modules, snapshot of {one['snapshot_bytes'] / 2**10:,.0f} KiB"
        for one in memory
    ]
    texts += [f"{one['name']} {describe_field(one)}" for one in fields]
    what = ", ".join(nsight["reports"]) or ("no report" if nsight["nsys"] else "nsys is not here")
    texts.append(f"marks in {sum(nsight['steps'])} steps, {what}")
    return passed and (complete if on_gpu else refused), "; ".join([*texts, *nsight["warnings"]])


def describe_field(one: Any) -> str:
    """Format a sampled field as `61 celsius (40 readings)`."""
    if one["value"] is None:
        return f"not read: {one['reason']}"
    return f"{one['value']:.4g} {one['unit']} ({one['readings']} readings)"


def judge_micro(document: Any) -> tuple[bool, str]:
    """Pass if no cell failed, and each that was timed is right, as it was requested."""
    cells, on_gpu = document["cells"], document["device"] == "cuda"
    timed = [one for one in cells if one["outcome"] == "passed" and "median_seconds" in one]
    failed = [one for one in cells if one["outcome"] == "failed"]
    wrong = [one for one in timed if not measured_as_requested(one, on_gpu)]
    skipped = dict.fromkeys(one["reason"] for one in cells if one["outcome"] == "skipped")
    both = {one["flush"] for one in timed} == {False, True}
    texts = [f"{len(timed)} of {len(cells)} cells timed"]
    texts += [f"{one['name']}: {one['reason'].splitlines()[-1]}" for one in failed]
    texts += [f"{one['name']}: WRONG" for one in wrong]
    texts += map(describe_cell, timed)
    return both and not failed and not wrong, "; ".join([*texts, *skipped])


def measured_as_requested(one: Any, on_gpu: bool) -> bool:
    """Return whether a timed cell is checked, with its memory and the right clock and cache."""
    checked = one["distance"] <= one["tolerance"] and one["peak_memory_bytes"] > 0
    clock = "cuda events" if on_gpu else "wall"
    return checked and one["clock"] == clock and one["cache_flushed"] == (on_gpu and one["flush"])


def describe_cell(one: Any) -> str:
    """Format a timed cell as `rms_norm[forward-eager-tiny] 0.0123 ms flushed`."""
    cache = " flushed" if one["flush"] else ""
    return f"{one['name']} {one['median_seconds'] * 1e3:.4g} ms{cache}"


def judge_numbers(document: Any) -> tuple[bool, str]:
    """Pass on a CPU, or if every ratio is known and within its limits."""
    figures = document["figures"]
    wrong = [one for one in figures if one["met"] is False]
    missing = [one for one in figures if one["met"] is None]
    names = list(dict.fromkeys(one["name"] for one in figures))
    texts = [f"{name} {span_of([one for one in figures if one['name'] == name])}" for name in names]
    texts += [f"{one['subject']}: {one['name']} is {one['value']:.4g}: WRONG" for one in wrong]
    unknown = dict.fromkeys(f"not measured: {one['name']} ({one['reason']})" for one in missing)
    passed = bool(figures) and (document["device_type"] == "cpu" or not (wrong or missing))
    return passed, "; ".join([*texts, *unknown, *document["problems"]])


def span_of(figures: Sequence[Any]) -> str:
    """Format the range of the known values: `0.98 to 0.99`."""
    values = [one["value"] for one in figures if one["value"] is not None]
    return f"{min(values):.4g} to {max(values):.4g}" if values else "unknown"


def judge_overhead(document: Any) -> tuple[bool, str]:
    """Pass unless a benchmark failed; missed goals are only reported."""
    texts = [
        f"{entry['name']} {entry['value']:.4g} {entry['unit']}"
        + {True: " (met)", False: f" (goal {entry['goal']} MISSED)", None: ""}[entry["met"]]
        for entry in document["entries"]
    ]
    texts += [f"{name} FAILED: {error}" for name, error in document["failed"].items()]
    return bool(texts) and not document["failed"], "; ".join(texts)


def judge_out_of_memory(document: Any) -> tuple[bool, str]:
    """Pass if the run ended as out of memory."""
    one = document["experiments"][0]
    return one["status"] == "oom", f"status {one['status']}: {'; '.join(one['reasons'])}"


def judge_kernels(document: Any) -> tuple[bool, str]:
    """Pass if every plugin keeps its contract on this device."""
    found = document["plugins"]
    texts = [f"{one['plugin']}: {one['proven']} proven" for one in found if one["proven"]]
    texts += [
        f"{one['plugin']} VIOLATES: {'; '.join(one['violated'])}"
        for one in found
        if one["violated"]
    ]
    return bool(found) and not any(one["violated"] for one in found), "; ".join(texts)


def judge_floor(document: Any) -> tuple[bool, str]:
    """Pass if both rates are in the document."""
    products, copies = document["matmul_flops_per_second"], document["copy_bytes_per_second"]
    line = f"{document['device']}: {products / 1e12:.4g} TFLOP/s, {copies / 1e12:.4g} TB/s"
    return products > 0 and copies > 0, line


def judge_claims(document: Any) -> tuple[bool, str]:
    """Pass if there is any claim, met or not."""
    texts = [describe_claim(one) for one in document["claims"]]
    return bool(texts), "; ".join(texts)


def describe_claim(one: Any) -> str:
    """Format a claim as `work: stack tokens_per_second 12,000 (goal 10,690 met)`."""
    over = f" over {one['baseline']}" if one["unit"] == "ratio" else ""
    words = f"{one['work']}: {one['stack']}{over} {one['metric']}"
    if one["value"] is None:
        return f"{words} not measured ({one['reason']})"
    goal = "" if one["goal"] is None else f" (goal {one['goal']:,.5g}"
    missed = one["reason"] or "MISSED"
    met = {True: " met)", False: f" {missed})", None: f", not judged: {one['reason']})"}[one["met"]]
    return f"{words} {one['value']:,.5g}{goal + met if goal else ''}"
