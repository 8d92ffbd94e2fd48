"""Base of all our pydantic models: frozen, strict, documented, no extra keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

__all__ = ["Frozen", "JsonValue", "PositiveInt"]

PositiveInt: TypeAlias = Annotated[int, Field(gt=0)]


class Frozen(BaseModel):
    """Base of a model that cannot be changed and refuses unknown keys."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former names of fields, for a hint where one is still used."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
    )
