"""Which environment variables a scenario may set, and which are recorded."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping

from accel_bench.errors import ScenarioError

ALLOWED = (
    "CUBLAS_*",
    "CUDA_*",
    "KMP_*",
    "MKL_*",
    "NCCL_*",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_*",
    "PYTORCH_*",
    "TORCH_*",
    "TORCHINDUCTOR_*",
    "TRITON_*",
)
"""Patterns of variables that change how fast something runs; none of them names code to load."""

FORBIDDEN = (
    "*DIR",
    "*FILE",
    "*HOME",
    "*LIBRARIES",
    "*PATH",
    "*PLUGIN*",
    "CUDA_INJECTION*",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
)
"""Exceptions to the patterns: these do name code to load, or a place that is written to."""


def is_allowed(name: str) -> bool:
    """Return whether a scenario may set this variable without `--allow-env`."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in ALLOWED) and not any(
        fnmatch.fnmatchcase(name, pattern) for pattern in FORBIDDEN
    )


def check_environment(
    environment: Mapping[str, str], where: Callable[[tuple[str, ...]], str], allow_all: bool
) -> None:
    """Refuse variables that could load code or carry secrets. Raises ScenarioError."""
    for name in environment:
        place = where(("environment", name))
        if not name or "=" in name or "\0" in name or "\0" in environment[name]:
            raise ScenarioError(f"{place}: {name!r} is not the name of an environment variable")
        if not allow_all and not is_allowed(name):
            raise ScenarioError(
                f"{place}: a scenario may not set {name}; if you trust it, use --allow-env"
            )


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process that can change a result, for the record."""
    return {name: environment[name] for name in sorted(environment) if is_allowed(name)}
