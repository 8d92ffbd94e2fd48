"""What is derived from the hooks of a plugin."""

from __future__ import annotations

import pytest

from accel_bench import Options, Plugin
from accel_bench.plugins.describe import options_of, slots_of_hooks


@pytest.mark.parametrize(
    ("hooks", "slots"),
    [
        (["accelerate_model"], ()),
        (["load_model", "accelerate_model"], ()),
        (["compile_model"], ()),
        (["load_data", "build_batches"], ("data",)),
        (["load_data", "load_model"], ("data", "model")),
        (["start_metrics", "finish_metrics"], ("metrics",)),
        (["build_optimizer", "finish_metrics"], ("optimizer",)),
        (["build_loss"], ("task",)),
        (["prepare_process"], ()),
    ],
    ids=lambda value: "+".join(value) or "none",
)
def test_hooks_decide_which_slots_a_plugin_fills(hooks: list[str], slots: tuple[str, ...]) -> None:
    assert slots_of_hooks(hooks) == slots


class Row(Options):
    """What is read of a row."""

    prompt: str | tuple[str, ...] = "prompt"
    messages: str | None = None


class Rows(Plugin[Row]):
    """Reads rows."""

    Options = Row


def test_types_of_options_are_shown_as_people_write_them() -> None:
    shown = {one["name"]: one["type"] for one in options_of(Rows)}
    assert shown == {"prompt": "str | tuple[str, ...]", "messages": "str | null"}
