"""What `accel_bench.run` returns."""

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
    """The runs of one call of `accel_bench.run`, and their comparison.

    As a sequence it holds a `Result` for each run that the comparison counts, those of earlier
    sessions included with `resume`.
    """

    def __init__(
        self,
        summaries: Sequence[Summary],
        results: Sequence[Result],
        columns: Sequence[Mapping[str, Any]],
        folder: Path,
    ) -> None:
        self.summaries = tuple(summaries)
        """The comparison of each scenario: several for a folder, none in a process whose work
        another one did, as in the ranks of torchrun other than 0."""

        self.folder = folder
        """The results folder, where each run has left its files."""

        self._results = tuple(results)
        self._columns = tuple(columns)

    @property
    def summary(self) -> Summary:
        """The comparison of the scenario. Raises AccelBenchError unless there is exactly one."""
        if len(self.summaries) != 1:
            names = ", ".join(one.scenario for one in self.summaries) or "none"
            raise AccelBenchError(
                f"`summary` is that of one scenario, and here are {len(self.summaries)} "
                f"({names}); use `summaries`"
            )
        return self.summaries[0]

    @property
    def rows(self) -> tuple[ExperimentSummary, ...]:
        """The rows of the comparison: each stack at each sweep point, of all scenarios."""
        return tuple(row for summary in self.summaries for row in summary.experiments)

    @property
    def conclusion(self) -> str:
        """The answer in a sentence; of several scenarios a line for each, with its name."""
        if len(self.summaries) == 1:
            return conclusion(self.summaries[0])
        return "\n".join(f"{one.scenario}: {conclusion(one)}" for one in self.summaries)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the runs, by which the store and the program know them."""
        return tuple(result.run_id for result in self._results)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions of the runs, in their order."""
        return tuple(dict.fromkeys(result.session for result in self._results))

    @property
    def exit_code(self) -> int:
        """What `accel-bench run` exits with: 0 where nothing failed, 1 where something did."""
        return exit_code(self.summaries) if self.summaries else 0

    def frame(self) -> pandas.DataFrame:
        """Return a row for each run, with the columns of `StoredResults.frame`.

        Raises AccelBenchError where pandas is not installed.
        """
        return to_frame(self._columns)

    def to_json(self) -> str:
        """Return the document that `accel-bench run --format json` prints."""
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
