"""What every model of ours has in common: frozen, strict, documented, nothing extra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

JsonValue: TypeAlias = Any
"""Something `json.dumps` takes: the values of options and of overrides."""

PositiveInt: TypeAlias = Annotated[int, Field(gt=0)]


class Frozen(BaseModel):
    """A value: it cannot be changed, and a key that it does not know is an error."""

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
