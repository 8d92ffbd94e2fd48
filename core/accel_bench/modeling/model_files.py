"""The digest of a model directory's files, for the identity of an experiment."""

from __future__ import annotations

import hashlib

from accel_bench.catalog.models import model_directory
from accel_bench.scenario.uses import ModelUse

SMALL_BYTES = 1_000_000
"""Size below which a file's content enters a digest; of larger files only the size does."""


def digest_of_model(model: ModelUse) -> str | None:
    """Return the hexadecimal SHA-256 of a model's local directory; None for a model without one."""
    directory = model_directory(model)
    if directory is None:
        return None
    pretrained = model.weights == "pretrained"
    patterns = ["config.json", "*.py", *(["*.safetensors*"] if pretrained else [])]
    digest = hashlib.sha256()
    for path in sorted(path for pattern in patterns for path in directory.glob(pattern)):
        size = path.stat().st_size
        content = hashlib.sha256(path.read_bytes()).hexdigest() if size < SMALL_BYTES else ""
        digest.update(f"{path.name}\0{size}\0{content}\n".encode())
    return digest.hexdigest()
