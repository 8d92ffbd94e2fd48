"""Look a model up on its hub while a run is planned: whether it is there, and its architecture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from accel_bench.scenario.uses import ModelUse

SECONDS = 3.0
"""How long the hub may take; a plan goes on without its answer."""

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables by which people say that the hub is not to be asked."""

ENDPOINT = "HF_ENDPOINT"
"""Variable that names another hub than the public one."""


USER_OF_ADDRESS = re.compile(r"//[^/\s]*@")
"""User and password of an address."""


class HubModel(NamedTuple):
    """What a hub says of a model."""

    architecture: str | None = None
    """Its class in transformers; None where the hub does not say it."""

    problem: str = ""
    """Why there is no such model to be loaded; empty where there is."""

    unknown: str = ""
    """Why the hub could not be asked; empty where it was."""

    is_gated: bool = False
    """True if its files are only for those to whom its owners give access."""

    has_safetensors: bool = True
    """True if there is a file of weights that can be loaded."""


_FOUND: dict[tuple[str, str | None, str | None], HubModel] = {}

_UNREACHED: dict[str | None, HubModel] = {}
"""Hubs that did not answer at all, which are not asked for another model."""


def look_up(model: ModelUse) -> HubModel:
    """Ask the hub for a model, once in a process; without a network the answer says so."""
    key = _key(model)
    if key not in _FOUND:
        _FOUND[key] = _ask(model)
    return _FOUND[key]


def looked_up(model: ModelUse) -> HubModel | None:
    """Return what `look_up` has found before; None where nobody has asked."""
    return _FOUND.get(_key(model))


def hub_notices(model: ModelUse) -> Iterator[str]:
    """Yield what is to be known of a model of a hub that `look_up` has been asked for."""
    found = looked_up(model)
    if found is None:
        return
    named = f"model.id {model.id!r}: "
    if found.unknown:
        yield (
            f"{named}whether the hub has it is only known when it is loaded, since {found.unknown}"
        )
    if found.is_gated and not _has_token():
        yield (
            f"{named}its files are only for those with access, and there is no token; unless they "
            "are in the cache, ask for access on the hub's page and set HF_TOKEN"
        )
    if model.weights == "pretrained" and not found.has_safetensors:
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
        found = hub.model_info(model.id, revision=model.revision, timeout=SECONDS)
    except HFValidationError as error:
        return HubModel(problem=f"it is no hub id: {_first_line(error)}")
    except HfHubHTTPError as error:
        return _refused(model, error)
    except Exception as error:  # What carries requests has errors of its own.
        unreached = HubModel(unknown=f"the hub was not reached: {_first_line(error)}")
        return _UNREACHED.setdefault(endpoint, unreached)
    names = (found.config or {}).get("architectures") or [None]
    files = [one.rfilename for one in found.siblings or ()]
    return HubModel(
        architecture=names[0],
        is_gated=bool(found.gated),
        has_safetensors=any(name.endswith(".safetensors") for name in files),
    )


def _refused(model: ModelUse, error: Exception) -> HubModel:
    """Return what an answer means that is no model."""
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
    """Return it without the user and password of an address."""
    lines = str(error).strip().splitlines()
    return USER_OF_ADDRESS.sub("//", lines[0]) if lines else type(error).__name__
