"""Choose a form of report by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from accel_bench.analysis.schema import Summary
from accel_bench.errors import AccelBenchError, did_you_mean
from accel_bench.report.csv_report import render_csv
from accel_bench.report.json_report import render_json
from accel_bench.report.markdown import render_markdown
from accel_bench.report.table import render_table

FORMATS: dict[str, Callable[[Sequence[Summary]], str]] = {
    "table": render_table,
    "json": render_json,
    "csv": render_csv,
    "markdown": render_markdown,
}
"""Forms by the name that `--format` takes."""


def render(summaries: Sequence[Summary], format: str) -> str:
    """Return the report as text; raises AccelBenchError for a format that there is not."""
    if format not in FORMATS:
        raise AccelBenchError(f"no report format {format!r}{did_you_mean(format, FORMATS)}")
    return FORMATS[format](summaries)
