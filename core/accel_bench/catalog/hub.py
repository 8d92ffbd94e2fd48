"""Look a model up on its hub while a run is planned: whether it is there, and its architecture."""

from __future__ import annotations

import os
from typing import NamedTuple

from accel_bench.scenario.uses import ModelUse

SECONDS = 3.0
"""How long the hub may take; a plan goes on without its answer."""

OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
"""Variables by which people say that the hub is not to be asked."""

ENDPOINT = "HF_ENDPOINT"
"""Variable that names another hub than the public one."""


class HubModel(NamedTuple):
    """What a hub says of a model."""

    architecture: str | None = None
    """Its class in transformers; None where the hub does not say it."""

    problem: str = ""
    """Why there is no such model to be loaded; empty where there is."""

    unknown: str = ""
    """Why the hub could not be asked; empty where it was."""


_FOUND: dict[tuple[str, str | None, str | None], HubModel] = {}


def look_up(model: ModelUse) -> HubModel:
    """Ask the hub for a model, once in a process; without a network the answer says so."""
    key = _key(model)
    if key not in _FOUND:
        _FOUND[key] = _ask(model)
    return _FOUND[key]


def looked_up(model: ModelUse) -> HubModel | None:
    """Return what `look_up` has found before; None where nobody has asked."""
    return _FOUND.get(_key(model))


def _key(model: ModelUse) -> tuple[str, str | None, str | None]:
    return model.id, model.revision, os.environ.get(ENDPOINT)


def _ask(model: ModelUse) -> HubModel:
    if name := next((name for name in OFFLINE if _is_on(name)), None):
        return HubModel(unknown=f"{name} is set")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        hub = HfApi(endpoint=os.environ.get(ENDPOINT))
        found = hub.model_info(model.id, revision=model.revision, timeout=SECONDS)
    except HFValidationError as error:
        return HubModel(problem=f"it is no hub id: {_first_line(error)}")
    except HfHubHTTPError as error:
        return _refused(model, error)
    except Exception as error:  # What carries requests has errors of its own.
        return HubModel(unknown=f"the hub was not reached: {_first_line(error)}")
    names = (found.config or {}).get("architectures") or [None]
    return HubModel(architecture=names[0])


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
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
