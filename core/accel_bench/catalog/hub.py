"""Requests to a model hub during planning, for the existence and the architecture of a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from accel_bench.scenario.uses import ModelUse

SECONDS = 3.0
"""Time limit of a request to the hub in seconds; a plan continues without its response."""

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Environment variables that forbid requests to the hub."""

ENDPOINT = "HF_ENDPOINT"
"""Environment variable that names another hub than the public one."""


USER_OF_ADDRESS = re.compile(r"//[^/\s]*@")
"""Pattern of user and password in an address."""


class HubModel(NamedTuple):
    """A hub's statements about a model, or the reason why nothing is known."""

    architecture: str | None = None
    """Class of the model in transformers; None if the hub does not state it."""

    problem: str = ""
    """Reason why the model cannot be loaded; empty if it can."""

    unknown: str = ""
    """Reason why the hub could not be reached; empty if it was."""

    is_gated: bool = False
    """True if the owners restrict access to the files."""

    has_safetensors: bool = True
    """True if there is a safetensors file of weights."""


_FOUND: dict[tuple[str, str | None, str | None], HubModel] = {}

_UNREACHED: dict[str | None, HubModel] = {}
"""Hubs that did not respond, which are not contacted again."""


def look_up(model: ModelUse) -> HubModel:
    """Ask the hub about a model; return what the hub states, or the reason why nothing is known.
    The result is cached per process."""
    key = _key(model)
    if key not in _FOUND:
        _FOUND[key] = _ask(model)
    return _FOUND[key]


def looked_up(model: ModelUse) -> HubModel | None:
    """Return what `look_up` has cached for a model, or None if it was not called for the model."""
    return _FOUND.get(_key(model))


def hub_notices(model: ModelUse) -> Iterator[str]:
    """Yield warnings for the user about a model, such as missing access; none before `look_up`."""
    cached = looked_up(model)
    if cached is None:
        return
    named = f"model.id {model.id!r}: "
    if cached.unknown:
        yield (
            f"{named}whether the hub has it is only known when it is loaded, since {cached.unknown}"
        )
    if cached.is_gated and not _has_token():
        yield (
            f"{named}its files are only for those with access, and there is no token; unless they "
            "are in the cache, ask for access on the hub's page and set HF_TOKEN"
        )
    if model.weights == "pretrained" and not cached.has_safetensors:
        yield (
            f"{named}the hub has no *.safetensors of it, and no other weights are loaded; name a "
            "revision that has them, or weights: random"
        )


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None


def _key(model: ModelUse) -> tuple[str, str | None, str | None]:
    return model.id, model.revision, os.environ.get(ENDPOINT)


def _ask(model: ModelUse) -> HubModel:
    if name := next((name for name in OFFLINE if _is_on(name)), None):
        return HubModel(unknown=f"{name} is set")
    endpoint = os.environ.get(ENDPOINT)
    if endpoint in _UNREACHED:
        return _UNREACHED[endpoint]
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        hub = HfApi(endpoint=endpoint)
        info = hub.model_info(model.id, revision=model.revision, timeout=SECONDS)
    except HFValidationError as error:
        return HubModel(problem=f"it is no hub id: {_first_line(error)}")
    except HfHubHTTPError as error:
        return _refused(model, error)
    except Exception as error:  # What carries requests has errors of its own.
        unreached = HubModel(unknown=f"the hub was not reached: {_first_line(error)}")
        return _UNREACHED.setdefault(endpoint, unreached)
    names = (info.config or {}).get("architectures") or [None]
    files = [file.rfilename for file in info.siblings or ()]
    return HubModel(
        architecture=names[0],
        is_gated=bool(info.gated),
        has_safetensors=any(name.endswith(".safetensors") for name in files),
    )


def _refused(model: ModelUse, error: Exception) -> HubModel:
    """Return what a hub's error response means: the model does not exist, or nothing is known."""
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, RevisionNotFoundError):
        return HubModel(problem=f"the hub has no revision {model.revision!r} of it")
    if isinstance(error, RepositoryNotFoundError):
        return HubModel(
            problem="the hub has no such model, or shows it only to those who may see it; correct "
            "the id, or set HF_TOKEN"
        )
    return HubModel(unknown=f"the hub answered: {_first_line(error)}")


def _is_on(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "on", "yes", "true")


def _first_line(error: Exception) -> str:
    """Return the first line of an error message, without the user and password of an address."""
    lines = str(error).strip().splitlines()
    return USER_OF_ADDRESS.sub("//", lines[0]) if lines else type(error).__name__
