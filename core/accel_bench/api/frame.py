"""Conversion of rows to a pandas DataFrame, with pandas imported on use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from accel_bench.errors import AccelBenchError

if TYPE_CHECKING:
    import pandas


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return a DataFrame with a row for each mapping, and a column for each key of any mapping.

    Raises AccelBenchError if pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise AccelBenchError(
            f"a frame needs pandas, which cannot be imported ({error}); "
            "pip install 'accel-bench[pandas]'"
        ) from error
    listed = list(rows)
    columns = list(dict.fromkeys(key for row in listed for key in row))
    return pandas.DataFrame(listed, columns=columns)
