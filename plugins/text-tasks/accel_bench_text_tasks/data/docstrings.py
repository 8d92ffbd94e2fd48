"""The data plugin `docstrings`: what a function says of itself, and the function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from accel_bench import Experiment, Run, hookimpl
from accel_bench.modeling.data import text_sources
from accel_bench_text_tasks.data.pairs import PairOptions, Pairs


class DocstringsOptions(PairOptions):
    """Which functions, and what stands before both texts."""

    limit_bytes: int = Field(2_000_000, ge=1, le=10**13)
    """Read no more bytes of sources than this."""

    query_prefix: str = "query: "
    """Text before each docstring, as E5 has it."""

    passage_prefix: str = "passage: "
    """Text before each function."""


class Docstrings(Pairs[DocstringsOptions]):
    """Pairs of a docstring and its function, from the sources of Python's standard library."""

    Options = DocstringsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a digest of the sources."""
        return text_sources.content_digest(text_sources.stdlib_files(self.options.limit_bytes))

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Check that there are sources."""
        if not text_sources.stdlib_files(self.options.limit_bytes):
            yield "Python's standard library is not here as source; use other data"

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Tokenize in a process that is not measured."""
        self._dataset(run)

    def _dataset(self, run: Run) -> Any:
        from accel_bench_text_tasks.data import docstrings_impl

        return docstrings_impl.dataset_of(run, self.options)
