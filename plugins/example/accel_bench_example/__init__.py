"""The plugin `example`: train only the last decoder blocks. Copy this folder to write your own."""

from __future__ import annotations

from pydantic import Field

from accel_bench import Options, Plugin, Run, hookimpl


class ExampleOptions(Options):
    """Options of the plugin, written beside `use: example`."""

    trainable_blocks: int = Field(1, ge=1)
    """Decoder blocks, counted from the last one, that stay trainable; all else is frozen."""


class Example(Plugin[ExampleOptions]):
    """Freeze all but the last blocks: less memory and time a step, and another loss."""

    # `loss_tolerance` is left at None: training less is another computation, and the verdict on
    # the loss is to say so.
    Options = ExampleOptions

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Freeze the model in place; a plugin that makes a new model returns it instead.

        Core calls `undo` when the run ends, even after an error, and stores the result of `counts`.
        """
        from .impl import Freezing

        freezing = Freezing(run.model, self.options.trainable_blocks)
        run.on_close(freezing.undo)
        run.on_evidence(freezing.counts)
