"""Allocations without processes, of one place or of several."""

from __future__ import annotations

from collections.abc import Sequence


class OnePlace:
    """A place that is there."""

    exit_code = None
    cores = None

    def __init__(self, name: str, *answers: bool) -> None:
        """`answers` are those of the first calls of `is_ready`; it is there ever after."""
        self.name = name
        self.answers = iter(answers)

    def is_ready(self) -> bool:
        return next(self.answers, True)

    def node_names(self) -> list[str]:
        return [self.name]

    def close(self) -> None:
        """Nothing was started."""


class Divided(OnePlace):
    """An allocation of several places."""

    def __init__(self, places: Sequence[OnePlace]) -> None:
        super().__init__("all")
        self.places = places
        self.interrupted = False

    def interrupt(self) -> None:
        self.interrupted = True


def divided() -> Divided:
    """An allocation of the places a and b."""
    return Divided([OnePlace("a"), OnePlace("b")])
