"""Results of `accel_bench.run`: its runs, and their comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.schema import ExperimentSummary, Summary
from accel_bench.analysis.summary import exit_code
from accel_bench.analysis.wording import count
from accel_bench.api.frame import to_frame
from accel_bench.errors import AccelBenchError
from accel_bench.report.formats import render
from accel_bench.result import Result

if TYPE_CHECKING:
    import pandas


class Results(Sequence[Result]):
    """Runs of one call of `accel_bench.run`, and the comparison of their stacks. The sequence holds
    a `Result` for each compared run. With `resume` it also holds the runs of earlier sessions."""

    def __init__(
        self,
        summaries: Sequence[Summary],
        results: Sequence[Result],
        columns: Sequence[Mapping[str, Any]],
        folder: Path,
    ) -> None:
        self.summaries = tuple(summaries)
        """Comparison of each scenario; empty in a process that did not measure, such as rank 1 of
        torchrun."""

        self.folder = folder
        """Results folder, which holds the files of each run."""

        self._results = tuple(results)
        self._columns = tuple(columns)

    @property
    def summary(self) -> Summary:
        """Comparison of the stacks, if there is one scenario. Raises AccelBenchError for no or
        several scenarios."""
        if len(self.summaries) != 1:
            names = ", ".join(summary.scenario for summary in self.summaries) or "none"
            raise AccelBenchError(
                f"`summary` is that of one scenario, and here are {len(self.summaries)} "
                f"({names}); use `summaries`"
            )
        return self.summaries[0]

    @property
    def rows(self) -> tuple[ExperimentSummary, ...]:
        """Rows of the comparison: one for each stack at each sweep point, of all scenarios."""
        return tuple(row for summary in self.summaries for row in summary.experiments)

    @property
    def conclusion(self) -> str:
        """Conclusion of the comparison in one sentence; for several scenarios one line each, with
        the scenario's name."""
        if len(self.summaries) == 1:
            return conclusion(self.summaries[0])
        return "\n".join(f"{summary.scenario}: {conclusion(summary)}" for summary in self.summaries)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the runs."""
        return tuple(result.run_id for result in self._results)

    @property
    def sessions(self) -> tuple[str, ...]:
        """Ids of the sessions of the runs, without repetition."""
        return tuple(dict.fromkeys(result.session for result in self._results))

    @property
    def exit_code(self) -> int:
        """Exit code that `accel-bench run` has for these results: 0, or 1 if a run failed."""
        return exit_code(self.summaries) if self.summaries else 0

    def frame(self) -> pandas.DataFrame:
        """Return a DataFrame with a row for each run, and the columns of `StoredResults.frame`.

        Raises AccelBenchError if pandas is not installed.
        """
        return to_frame(self._columns)

    def to_json(self) -> str:
        """Return the JSON document that `accel-bench run --format json` prints."""
        return render(self.summaries, "json")

    @overload
    def __getitem__(self, index: int) -> Result: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Result]: ...

    def __getitem__(self, index: int | slice) -> Result | Sequence[Result]:
        return self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        return f"<Results of {count(len(self), 'run')}: {self.conclusion}>"
