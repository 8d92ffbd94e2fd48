"""A small run for this plugin's tests, and their requirements."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from accel_bench import Machine, Run, testing

# An adapter imports GPTQModel as soon as it is installed, so it has an environment of its own.
collect_ignore_glob = [] if find_spec("gptqmodel") else ["test_*.py"]

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(autouse=True)
def packed_by_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make GPTQModel pack in Python, since compiling its kernel takes most of a minute."""
    monkeypatch.setenv("GPTQMODEL_DISABLE_PACK_EXT", "1")


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Make a run of one CPU rank: LoRA on two layers of the small llama, as bfloat16."""

    def make(model: dict[str, Any] | None = None, **settings: Any) -> Run:
        work = {
            "model": {
                "id": "tiny-llama-cpu",
                "dtype": "bfloat16",
                "overrides": {"num_hidden_layers": 2},
                **(model or {}),
            },
            "adapter": {"use": "lora", "r": 4, "target_modules": TARGETS},
            "data": {"sequence_length": 32},
            **settings,
        }
        return testing.make_run(tmp_path, work)

    return make


@pytest.fixture
def machine() -> Machine:
    """A machine without a GPU."""
    return testing.make_machine()
