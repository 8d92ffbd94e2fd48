"""Rows as a table of pandas, which is imported when one is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from accel_bench.errors import AccelBenchError

if TYPE_CHECKING:
    import pandas


def to_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return a row for each mapping, a column for each key that any of them has.

    Raises AccelBenchError where pandas is not installed.
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
