"""Validation of plain data by pydantic models; an error names file, line and key."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from accel_bench.documents.load import Location
from accel_bench.errors import AccelBenchError, did_you_mean

ModelT = TypeVar("ModelT", bound=BaseModel)


class LocatedError(ValueError):
    """Error of a validator about a value inside the validated model, at the path `location`."""

    def __init__(self, location: Location, message: str) -> None:
        super().__init__(message)
        self.location = location


def validate(
    model: type[ModelT],
    data: Any,
    where: Callable[[Location], str],
    error: type[AccelBenchError],
    context: str = "",
) -> ModelT:
    """Return `data` as a validated model, or raise `error` with a line for each problem. Pydantic
    reads `data` as JSON, so that lists can stand for tuples. `where` returns the file and line of a
    path in `data`; `context` is put at the end of each line."""
    try:
        text = json.dumps(data, allow_nan=False)
        return model.model_validate_json(text)
    except ValidationError as problems:
        lines = [_line(model, data, problem, where, context) for problem in problems.errors()]
        raise error("\n".join(dict.fromkeys(lines))) from None
    except ValueError as problem:
        raise error(f"{where(())}: {problem}") from None


def _line(
    model: type[BaseModel],
    data: Any,
    problem: Any,
    where: Callable[[Location], str],
    context: str,
) -> str:
    """Return a validation problem as one line: location, key, problem, given value, `context`."""
    location = _location(problem["loc"], data)
    key = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        known = known_keys(model, location[:-1])
        text = f"unknown key {key!r}{did_you_mean(str(location[-1]), known)}"
    elif problem["type"] == "value_error":
        raised = problem["ctx"]["error"]
        text = f"{key}: {raised}" if key else str(raised)
        if isinstance(raised, LocatedError):
            location = (*location, *raised.location)
    else:
        given = json.dumps(problem["input"], default=str)
        shown = given if len(given) <= 60 else f"{given[:57]}..."
        text = f"{key}: {problem['msg'].removesuffix('.')} (given: {shown})"
    return f"{where(location)}: {text}{context}"


def _location(parts: Sequence[str | int], data: Any) -> Location:
    """Return the path of a problem in `data`: `parts` without pydantic's names of union members."""
    kept: list[str | int] = []
    for part in parts:
        given = isinstance(data, dict) and part in data
        if given or not _is_internal(part):
            kept.append(part)
            inside = given or (isinstance(data, list | tuple) and isinstance(part, int))
            data = data[part] if inside else None
    return tuple(kept)


def _is_internal(part: str | int) -> bool:
    if not isinstance(part, str):
        return False
    return part in ("int", "float", "str", "bool") or "[" in part or part.startswith("constrained-")


def known_keys(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    """Return the field names of the model at the path `location` within `model`, or of the nearest
    model around that path."""
    here = model
    for part in location:
        field = here.model_fields.get(str(part))
        annotation = field and field.annotation
        inner = [annotation, *get_args(annotation)]
        here = next((kind for kind in inner if hasattr(kind, "model_fields")), here)
    return list(here.model_fields)
