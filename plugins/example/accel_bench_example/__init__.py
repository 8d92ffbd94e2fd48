"""The plugin `example`: train only the last decoder blocks. Copy this folder to write your own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from accel_bench import Options, Plugin, Run, hookimpl

if TYPE_CHECKING:
    from .impl import Freezing


class ExampleOptions(Options):
    """What a user may write beside `use: example`."""

    trainable_blocks: int = Field(1, ge=1)
    """Decoder blocks, counted from the last one, that stay trainable; all else is frozen."""


class Example(Plugin[ExampleOptions]):
    """Freeze all but the last blocks: less memory and time a step, and another loss."""

    # `loss_tolerance` is left at None: training less is another computation, and the verdict on
    # the loss is to say so.
    Options = ExampleOptions

    def __init__(self, options: ExampleOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._freezing: Freezing | None = None

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Freeze in place; a plugin that makes a new model returns it instead."""
        from .impl import Freezing

        self._freezing = Freezing(run.model, self.options.trainable_blocks)

    @hookimpl
    def report_evidence(self, run: Run) -> dict[str, Any]:
        """Show that it acted: how many parameters were frozen, and how many are trained."""
        return self._freezing.counts() if self._freezing is not None else {}

    @hookimpl
    def close_run(self, run: Run) -> None:
        """Undo, whatever happened; the run may have failed before anything was frozen."""
        if self._freezing is not None:
            self._freezing.undo()
            self._freezing = None
