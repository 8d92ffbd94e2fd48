"""Entry points that make stacks from a key of a scenario file, `ladder`.

A distribution makes stacks by an entry point of the group `accel_bench.stacks` with the name of the
key: a function of a draft that writes the stacks into the draft with their locations, and returns
them as `MadeStacks`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from accel_bench.errors import ScenarioError
from accel_bench.plugins.doors import find_entries
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.models import LadderPosition, StackEntry

GROUP = "accel_bench.stacks"
"""Group of the entry points that make stacks."""

KEY = "ladder"
"""Key of the scenario file from which stacks are made."""


class MadeStacks(Protocol):
    """Stacks made from one list of items, and the baseline that they extend."""

    @property
    def names(self) -> Collection[str]:
        """Names of the stacks, without the name of the baseline."""

    def place(self, stack: str) -> LadderPosition | None:
        """Return the position of a stack in the list; None for a stack not made from it."""

    def stacks_at(self, draft: Draft, sweep: dict[str, Any]) -> Mapping[str, StackEntry]:
        """Return the baseline and the made stacks at the given values of swept keys.

        The mapping is empty if no swept key is an option of a stack. Raises ScenarioError for items
        without effect at these values.
        """

    def check_plugins(self, chosen: Collection[str]) -> None:
        """Raise PluginError for an item of the chosen stacks that names no plugin or option."""


def make_stacks(draft: Draft) -> MadeStacks | None:
    """Add the stacks of a draft's ladder to the draft and return them; None without a ladder.
    Raises ScenarioError if the ladder is invalid, or if no installed distribution makes its
    stacks."""
    if draft.data.get(KEY) in (None, []):
        return None
    entry = find_entries(GROUP, "maker of stacks").get(KEY)
    if entry is None:
        raise ScenarioError(f"{draft.where((KEY,))}: nothing that is installed makes a ladder")
    make = entry.load()
    with entry.blamed():
        made: MadeStacks | None = make(draft)
    return made
