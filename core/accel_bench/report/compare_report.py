"""Two stored experiments side by side: text, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from io import StringIO

from pydantic import TypeAdapter

from accel_bench.analysis.checks.comparability import Difference
from accel_bench.analysis.compare import ExperimentComparison, Operand
from accel_bench.analysis.wording import (
    interval_text,
    label,
    percent,
    plain_value,
    rate,
    ratio,
)
from accel_bench.errors import AccelBenchError, did_you_mean
from accel_bench.report.cells import EMPTY, milliseconds, plain
from accel_bench.report.csv_report import cell, interval_columns
from accel_bench.report.markdown import escape
from accel_bench.scenario.experiment import canonical_json

HEADERS = (
    "", "experiment", "stack", "session", "tokens/s", "step ms p50/p95/p99", "spread", "peak MiB",
    "loss at end", "runs", "status", "declares",
)  # fmt: skip
"""Headers of the two rows."""


def render_comparison(found: Sequence[ExperimentComparison], format: str) -> str:
    """Return the report as text; raises AccelBenchError for a format that there is not."""
    if format not in FORMATS:
        raise AccelBenchError(f"no report format {format!r}{did_you_mean(format, FORMATS)}")
    return FORMATS[format](found)


def render_text(found: Sequence[ExperimentComparison]) -> str:
    """For each comparison its two rows, what differs, and what may be said."""
    return "\n".join(_text(one) for one in found)


def render_json(found: Sequence[ExperimentComparison]) -> str:
    """One object, or a list of them where there are several sweep points."""
    if len(found) == 1:
        return found[0].model_dump_json(indent=2) + "\n"
    documents = TypeAdapter(list[ExperimentComparison]).dump_json(list(found), indent=2)
    return documents.decode() + "\n"


def render_csv(found: Sequence[ExperimentComparison]) -> str:
    """A header and a flat row for each comparison."""
    rows = [_flat(one) for one in found]
    output = StringIO()
    writer = csv.DictWriter(output, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
    return output.getvalue()


def render_markdown(found: Sequence[ExperimentComparison]) -> str:
    """For each comparison a table of both, a table of what differs, and the sentence."""
    return "\n".join(_markdown(one) for one in found)


FORMATS: Mapping[str, Callable[[Sequence[ExperimentComparison]], str]] = {
    "table": render_text,
    "json": render_json,
    "csv": render_csv,
    "markdown": render_markdown,
}
"""Forms by the name that `--format` takes."""


def sentence(one: ExperimentComparison) -> str:
    """What may be said of B against A, and on what grounds."""
    a, b = (label(side.stack, side.sweep) for side in (one.a, one.b))
    if one.ratio is None:
        return f"no ratio: {one.verdict_reason}"
    runs = f"{one.pairs} pairs" if one.paired else f"{one.a.runs} and {one.b.runs} runs, unpaired"
    interval = f"{interval_text(one.ratio, ratio)}, {runs}"
    speed = f"{ratio(one.ratio.median)} times the speed of A ({interval})"
    verdict = one.verdict if one.verdict != "not tested" else f"no verdict, {one.verdict_reason}"
    loss = f"loss {one.loss_verdict}" + (f" ({one.loss_reason})" if one.loss_reason else "")
    first = [loss] if one.loss_verdict == "different" else []
    parts = [*first, f"B, {b}, has {speed}", f"against A, {a}: {verdict}"]
    if one.verdict == "inconclusive" and one.minimum_detectable_effect is not None:
        parts.append(
            f"these pairs show only effects above {percent(one.minimum_detectable_effect)}"
        )
    return "; ".join([*parts, *([] if first else [loss])]) + "."


def _text(one: ExperimentComparison) -> str:
    """One comparison for the terminal."""
    lines = _aligned([HEADERS, _cells("A", one.a), _cells("B", one.b)])
    for side in (one.a, one.b):
        lines += [f"{plain(side.stack)}: {plain(reason)}" for reason in side.reasons]
    lines += ["", *_difference_lines("declared", one.declared)]
    lines += _difference_lines("differs, and is not declared", one.differing)
    comparable = "yes" if one.comparable else "no: more differs than the stacks declare"
    return "\n".join([*lines, f"comparable: {comparable}", plain(sentence(one))]) + "\n"


def _difference_lines(title: str, differences: Sequence[Difference]) -> list[str]:
    """A table of what differs; nothing where nothing does."""
    if not differences:
        return []
    rows = [(one.key, _value(one.a), _value(one.b)) for one in differences]
    return [*_aligned([(title, "A", "B"), *rows]), ""]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with columns of equal width."""
    texts = [[plain(text) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return [
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]


def _cells(name: str, side: Operand) -> list[str]:
    """One of the two, in the order of the headers."""
    speed, step, loss, peak = (
        side.tokens_per_second,
        side.step_seconds,
        side.loss,
        side.peak_memory_bytes,
    )
    quantiles = (step.p50, step.p95, step.p99) if step else ()
    return [
        name,
        side.experiment_id,
        label(side.stack, side.sweep),
        ", ".join(side.sessions),
        f"{rate(speed.median)} ({interval_text(speed, rate)})" if speed else EMPTY,
        "/".join(map(milliseconds, quantiles)) or EMPTY,
        EMPTY if step is None or step.spread is None else percent(step.spread),
        EMPTY if peak is None else f"{peak / 2**20:,.0f}",
        EMPTY if loss is None or loss.last is None else f"{loss.last:#.4g}",
        str(side.runs),
        side.status.value,
        side.differs,
    ]


def _markdown(one: ExperimentComparison) -> str:
    """One comparison as Markdown."""
    names = " and ".join(escape(label(side.stack, side.sweep)) for side in (one.a, one.b))
    lines = [f"## {names}", "", _line(HEADERS), _line(["---"] * len(HEADERS))]
    lines += [_line(_cells(name, side)) for name, side in (("A", one.a), ("B", one.b))]
    groups = (("declared", one.declared), ("differs, and is not declared", one.differing))
    for title, differences in groups:
        if differences:
            lines += ["", _line([title, "A", "B"]), _line(["---"] * 3)]
            lines += [_line([d.key, _value(d.a), _value(d.b)]) for d in differences]
    comparable = "yes" if one.comparable else "no"
    return "\n".join([*lines, "", f"Comparable: {comparable}. {escape(sentence(one))}"]) + "\n"


def _line(texts: Sequence[str]) -> str:
    return f"| {' | '.join(escape(text) if text != '---' else text for text in texts)} |"


def _value(value: object) -> str:
    """A fact's value; what is not there is a dash."""
    return EMPTY if value is None else plain_value(value)


def _flat(one: ExperimentComparison) -> dict[str, str | float | None]:
    """One comparison on one row, with the names of the document."""
    whole = one.model_dump(mode="json", exclude={"a", "b", "declared", "differing", "ratio"})
    return {
        **whole,
        **interval_columns("ratio", one.ratio),
        **_flat_side("a", one.a),
        **_flat_side("b", one.b),
        "declared": _flat_differences(one.declared),
        "differing": _flat_differences(one.differing),
    }


def _flat_side(name: str, side: Operand) -> dict[str, str | float | None]:
    """One of the two, its columns beginning with its name."""
    step = side.step_seconds.model_dump() if side.step_seconds else {}
    return {
        f"{name}_experiment_id": side.experiment_id,
        f"{name}_stack": side.stack,
        f"{name}_sweep": canonical_json(side.sweep),
        f"{name}_sessions": "; ".join(side.sessions),
        f"{name}_status": side.status.value,
        f"{name}_runs": side.runs,
        **interval_columns(f"{name}_tokens_per_second", side.tokens_per_second),
        **{
            f"{name}_step_seconds_{key}": step.get(key)
            for key in ("p50", "p90", "p95", "p99", "spread")
        },
        f"{name}_peak_memory_bytes": side.peak_memory_bytes,
        f"{name}_peak_memory_kind": side.peak_memory_kind,
        f"{name}_loss_last": side.loss.last if side.loss else None,
        f"{name}_differs": side.differs,
    }


def _flat_differences(differences: Sequence[Difference]) -> str:
    return "; ".join(f"{one.key}: {_value(one.a)} | {_value(one.b)}" for one in differences)
