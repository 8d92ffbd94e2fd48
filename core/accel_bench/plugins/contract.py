"""Tell whether another accel-bench reads the jobs of this one, and writes results for it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from accel_bench.documents.canonical import digest
from accel_bench.job import Job
from accel_bench.result import RankResult


def contract() -> str:
    """Return a digest of the fields of jobs and results, and of the values that they may have.

    Both sides must have the same: neither reads a field that it does not know.
    """
    found: dict[str, list[str]] = {}
    for model in (Job, RankResult):
        _add_fields(model, found)
    return digest(found)


def _add_fields(annotation: Any, found: dict[str, list[str]]) -> None:
    """Add the fields of all models that an annotation names, and the literals it allows."""
    if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for one in get_args(annotation):
            _add_fields(one, found)
        return
    if annotation.__name__ in found:
        return
    found[annotation.__name__] = sorted(
        f"{name}: {' '.join(sorted(_literals(field.annotation)))}"
        for name, field in annotation.model_fields.items()
    )
    for field in annotation.model_fields.values():
        _add_fields(field.annotation, found)


def _literals(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (str(one.value) for one in annotation)
    else:
        for one in get_args(annotation):
            yield from _literals(one)
