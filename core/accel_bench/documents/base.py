"""Base classes of all pydantic models: frozen, strict, without extra keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from accel_bench.errors import FORMER_NAMES

__all__ = ["Described", "Frozen", "JsonValue", "PositiveInt"]

PositiveInt: TypeAlias = Annotated[int, Field(gt=0)]


class Frozen(BaseModel):
    """Base of a model whose fields cannot be changed and which refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        # A validator is built at its first use: a worker needs few of them.
        defer_build=True,
    )

    if not TYPE_CHECKING:  # For a type checker every attribute would exist.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the new name if `name` is the former name of a field."""
            if (new := FORMER_NAMES.get(name)) in type(self).model_fields:
                raise AttributeError(f"{type(self).__name__}.{name} is called {new!r} now")
            return super().__getattr__(name)


class Described(Frozen):
    """Base of a model whose JSON schema describes each field by its docstring.

    Only some models need it: reading all docstrings would take a fifth of a program's start time.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)
