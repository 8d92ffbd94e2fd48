"""Live progress on stderr: current stack, round and step, tokens/s, remaining time."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import asdict, replace

from rich.console import Console
from rich.live import Live
from rich.text import Text

from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.wording import count, duration, rate
from accel_bench.api.progress import CallbackReporter, RunProgress
from accel_bench.cli.output import print_event
from accel_bench.documents.escaping import plain
from accel_bench.job import PREPARE
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result
from accel_bench.runner.heartbeats import Progress
from accel_bench.runner.session import Reporter
from accel_bench.scenario.sweep import at


class LineReporter(Reporter):
    """Reporter that prints one line for each run: for logs and for programs that read stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs = 0
        self._ended = 0
        self._seconds = 0.0
        self._lock = threading.RLock()

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Print notices, skipped stacks and the number of runs."""
        for notice in plan.notices:
            self._print(f"notice: {notice}")
        for planned in plan.planned:
            if reasons := "; ".join(planned.skipped):
                self._print(f"skipped {planned.experiment.stack.name}: {reasons}")
        done = "" if runs else "; all rounds are complete, nothing is run"
        self._print(f"{plan.file.name}: {count(runs, 'run')}{done}")
        # Plans that run side by side are all announced before the first run.
        self._runs = runs if self._ended else self._runs + runs
        self._ended, self._seconds = 0, 0.0

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Print a run's status and speed, and the estimated time of the remaining runs. `what` is
        the run's work, such as `round 2 of 5`."""
        speed = run_throughput(result)
        unit = f"{planned.experiment.scenario.counts}/s"
        pace = f"  {rate(speed.tokens_per_second)} {unit}" if speed else ""
        with self._lock:  # experiments may run at once, each in a thread
            if what != PREPARE:
                self._ended += 1
                self._seconds += result.seconds
            self._print(
                f"{what}  {planned.experiment.stack.name}  {result.status.value}"
                f"{pace}  {result.seconds:.1f} s  {self._left()}"
            )
            if not result.status.completed:
                self._print("  " + "; ".join(result.reasons))

    def on_drop(self, planned: Planned, reason: str) -> None:
        """Print the reason why a stack runs no more rounds."""
        with self._lock:
            experiment = planned.experiment
            self._print(f"{experiment.stack.name}{at(experiment.sweep)}: {reason}")

    def on_warning(self, text: str) -> None:
        """Print a warning between the lines of runs."""
        self._print(f"warning: {text}")

    def _left(self) -> str:
        return f"({duration(self._seconds_left())} left)" if self._ended else ""

    def _seconds_left(self) -> float:
        return self._seconds / self._ended * max(0, self._runs - self._ended)

    def _print(self, line: str) -> None:
        whole = not self._console.is_terminal  # else it ends at blanks, and no path is broken
        text = Text(plain(line), overflow="ignore")
        self._console.print(text, soft_wrap=whole, crop=False)


class LiveReporter(LineReporter):
    """Reporter that updates one line in place, above which finished runs stay."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._parts: list[str] = []
        self._expected: float | None = None
        self._since = time.monotonic()
        self._live = Live(
            console=console, refresh_per_second=4, transient=True, get_renderable=self._line
        )
        self._live.start()
        self._first: dict[str, tuple[int, float]] = {}

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Start the estimate of the remaining time from the durations of earlier runs."""
        super().on_plan(plan, runs, seconds)
        self._expect(seconds)

    def on_start(self, planned: Planned, what: str) -> None:
        """Show that a stack's processes start, and their work `what`, such as `round 2 of 5`."""
        self._first.pop(_key(planned), None)
        self._parts = [what, planned.experiment.stack.name, "starting"]

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Update the estimate of the remaining time from the durations of this session's runs."""
        super().on_result(planned, what, result)
        with self._lock:
            if self._ended:
                self._expect(self._seconds_left())

    def on_progress(self, planned: Planned, what: str, progress: Progress) -> None:
        """Show a run's work `what`, stack, phase, step, speed, and observers' texts."""
        name, unit = planned.experiment.stack.name, planned.experiment.scenario.counts
        pace = self._rate(planned, progress)
        speed = f"{rate(pace)} {unit}/s" if pace else ""
        parts = (what, name, progress.phase, f"step {progress.step}", speed, progress.live)
        self._parts = [part for part in parts if part]

    def close(self) -> None:
        """Erase the line that was updated in place."""
        self._live.stop()

    def _expect(self, seconds: float | None) -> None:
        self._expected, self._since = seconds, time.monotonic()

    def _line(self) -> Text:
        """Return the progress line: the current run, and the session's estimated remaining time."""
        if not self._parts:
            return Text("")
        return Text(plain("  ".join([*self._parts, *self._left_of_all()])))

    def _left_of_all(self) -> list[str]:
        if self._expected is None:
            return []
        left = self._expected - (time.monotonic() - self._since)
        return [f"({duration(left)} left)" if left > 0 else "(longer than expected)"]

    def _rate(self, planned: Planned, progress: Progress) -> float | None:
        """Return tokens or calls per second since the run's first reported step, padding included.
        It is None at the first report."""
        now = time.monotonic()
        if progress.step == 0:
            return None
        step, since = self._first.setdefault(_key(planned), (progress.step, now))
        scenario = planned.experiment.scenario
        tokens = scenario.train.global_batch_size * scenario.data.sequence_length
        return (progress.step - step) * tokens / (now - since) if now > since else None


def _key(planned: Planned) -> str:
    """Return a key that is unique among a plan's experiments; equivalent stacks share one id."""
    return planned.experiment.id + planned.experiment.stack.name


class JsonReporter(CallbackReporter):
    """Reporter that prints one line of JSON on stderr for each event."""

    def on_plan(self, plan: Plan, runs: int, seconds: float | None) -> None:
        """Print notices, skipped stacks and the number of runs."""
        for notice in plan.notices:
            print_event("note", reason=notice)
        for planned in plan.planned:
            if reasons := "; ".join(planned.skipped):
                self._print_stack("skipped", planned, reasons)
        super().on_plan(plan, runs, seconds)

    def on_result(self, planned: Planned, what: str, result: Result) -> None:
        """Print the end of a run, even if an earlier line raised an error or was interrupted."""
        self.raised = None
        super().on_result(planned, what, result)

    def on_drop(self, planned: Planned, reason: str) -> None:
        """Print the reason why a stack runs no more rounds."""
        self._print_stack("dropped", planned, reason)

    def on_warning(self, text: str) -> None:
        """Print a warning."""
        print_event("warning", reason=text)

    def _print_stack(self, event: str, planned: Planned, reason: str) -> None:
        experiment = planned.experiment
        print_event(event, stack=experiment.stack.name, tag=experiment.tag, reason=reason)


def _print_progress(progress: RunProgress) -> None:
    shown = asdict(replace(progress, result=None))
    del shown["result"]
    if (result := progress.result) is not None:
        shown |= {"status": result.status.value, "seconds": result.seconds}
        shown |= {"reasons": result.reasons, "experiment_id": result.experiment.id}
        shown["tokens_per_second"] = getattr(run_throughput(result), "tokens_per_second", None)
    print_event(**shown)


def make_reporter(quiet: bool, form: str = "text") -> Reporter:
    """Return a reporter that is silent with `quiet`, else prints JSON if `form` is `json`.
    Otherwise it updates one line in place on a terminal, or prints a line for each run."""
    if quiet or form == "json":
        return Reporter() if quiet else JsonReporter(_print_progress)
    console = Console(stderr=True, highlight=False)
    on_terminal = console.is_terminal and sys.stderr.isatty()
    return LiveReporter(console) if on_terminal else LineReporter(console)
