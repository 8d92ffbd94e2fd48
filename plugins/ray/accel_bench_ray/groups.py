"""The parent's side: the agents of each group of nodes, and the program that starts them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from accel_bench_cluster import StartedAgents, new_secret

from accel_bench import Job, RankProcess
from accel_bench.errors import AccelBenchError

from .request import NOTICE

SLACK_SECONDS = 30.0
"""How much longer than Ray's placement the parent waits: actors start after it."""


class RayAgents(StartedAgents):
    """The agents of one group of nodes. Where an actor dies, another one takes its place."""

    def __init__(self, secret: bytes, seconds: float, first: RayAgents | None) -> None:
        """`first` are the agents whose program keeps these too, None for those; a lost actor is
        awaited for so many seconds."""
        super().__init__(("", 0), secret, "Ray")
        self._seconds = self._patience = seconds
        self._first = first
        self._interrupted = False

    def is_ready(self) -> bool:
        """Return whether all actors are there, after waiting for those that replace others.

        Where they have not come, they are not awaited again until all are there.
        """
        try:
            self.replace_lost(self._patience)
        except ConnectionError:
            self._patience = 0.0
            return False
        self._patience = self._seconds
        return True

    def launch(self, job: Job) -> list[RankProcess]:
        """Start the ranks of a job, once all actors are there. Raises OSError where they are not.

        A group that is lost is not awaited again. Raises KeyboardInterrupt where the session ends.
        """
        if not self.is_ready() and self._interrupted:
            raise KeyboardInterrupt
        return super().launch(job)

    def check(self) -> None:
        """Raise AccelBenchError when no agents can come any more."""
        if self._interrupted:
            raise AccelBenchError("the session ends")
        if self._first is not None:
            self._first.check()
        super().check()

    def interrupt(self) -> None:
        """Wait for no agents any more."""
        self._interrupted = True

    def notices(self) -> list[str]:
        """Return what the program has printed for the user."""
        if self._output.closed:
            return []
        return [line for line in self.tail().splitlines() if line.startswith(NOTICE)]


class RayGroups:
    """The groups of nodes of a session: an allocation whose places share no node."""

    exit_code: int | None = None

    def __init__(self, number: int, seconds: float) -> None:
        """Listen for the agents of so many groups, whose lost actors are awaited that long."""
        self._seconds = seconds
        secret = new_secret()
        self._first = RayAgents(secret, seconds, None)
        others = [RayAgents(secret, seconds, self._first) for _ in range(1, number)]
        self.places = [self._first, *others]

    @property
    def ports(self) -> tuple[int, ...]:
        """Return where the agents of each group are awaited."""
        return tuple(place.port for place in self.places)

    @property
    def cores(self) -> int:
        """Return the cores that the ranks of a node may use, on the smallest node."""
        return min(place.cores for place in self.places)

    def start(self, command: Sequence[str], shape: tuple[int, int]) -> None:
        """Start the program, and wait for the agents of nodes and devices of this shape."""
        self._first.start(command, "")
        for place in self.places:
            place.gather(*shape, self._seconds + SLACK_SECONDS)

    def interrupt(self) -> None:
        """Wait for no agents any more."""
        for place in self.places:
            place.interrupt()

    def close(self) -> None:
        """End the agents, then the program; print its notices."""
        notices = self._first.notices()
        with contextlib.ExitStack() as closing:
            for place in self.places:
                closing.callback(place.close)
        for line in notices:
            print(line, file=sys.stderr)
