"""Canonical JSON: equal values, equal text, equal digest."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_bench.documents.canonical import canonical_json, digest


@given(st.dictionaries(st.text(max_size=3), st.integers() | st.floats(allow_nan=False), max_size=4))
def test_equal_values_give_equal_text_whatever_their_order(value: dict[str, Any]) -> None:
    if any(isinstance(item, float) and math.isinf(item) for item in value.values()):
        with pytest.raises(ValueError, match="Out of range"):
            canonical_json(value)
        return
    backwards = dict(reversed(value.items()))
    assert canonical_json(value) == canonical_json(backwards)
    assert digest(value) == digest(backwards)
