"""Live progress on stderr: which stack, which round, step, tokens/s, time left."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.planning.plan import Plan, Planned
from accel_bench.result import Result
from accel_bench.runner.session import Reporter
from accel_bench.runner.supervise import Progress


class LineReporter(Reporter):
    """Prints one line for each run: for logs and for programs that read stderr."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs = 0
        self._ended = 0
        self._seconds = 0.0
        self._what = ""

    def on_plan(self, plan: Plan, runs: int) -> None:
        """Print notices, skipped stacks and the number of runs."""
        for notice in plan.notices:
            self._print(f"notice: {notice}")
        for planned in plan.planned:
            if planned.skipped:
                self._print(
                    f"skipped {planned.experiment.stack.name}: {'; '.join(planned.skipped)}"
                )
        done = "" if runs else "; all rounds are complete, nothing is run"
        self._print(f"{plan.file.name}: {runs} runs{done}")
        self._runs, self._ended, self._seconds = runs, 0, 0.0

    def on_start(self, planned: Planned, what: str) -> None:
        """Remember which round it is."""
        self._what = what

    def on_result(self, planned: Planned, result: Result) -> None:
        """Print its status, its speed and how long the rest may take."""
        if self._what != "prepare":
            self._ended += 1
            self._seconds += result.seconds
        speed = run_throughput(result)
        rate = f"  {speed.tokens_per_second:,.0f} tokens/s" if speed else ""
        self._print(
            f"{self._what}  {planned.experiment.stack.name}  {result.status.value}"
            f"{rate}  {result.seconds:.1f} s  {self._left()}"
        )
        if not result.status.completed:
            self._print("  " + "; ".join(result.reasons))

    def _left(self) -> str:
        if not self._ended:
            return ""
        left = self._seconds / self._ended * max(0, self._runs - self._ended)
        return f"({duration(left)} left)"

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class LiveReporter(LineReporter):
    """Updates one line in place, above which finished runs stay."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._live.start()
        self._first: tuple[int, float] | None = None

    def on_start(self, planned: Planned, what: str) -> None:
        """Show that a process group starts."""
        super().on_start(planned, what)
        self._first = None
        self._live.update(Text(f"{what}  {planned.experiment.stack.name}  starting"))

    def on_progress(self, planned: Planned, progress: Progress) -> None:
        """Show phase, step and speed."""
        parts = [self._what, planned.experiment.stack.name, progress.phase, f"step {progress.step}"]
        rate = self._rate(planned, progress)
        parts += [f"{rate:,.0f} tokens/s"] if rate else []
        self._live.update(Text("  ".join([*parts, self._left()])))

    def close(self) -> None:
        """Erase the line that was updated in place."""
        self._live.stop()

    def _rate(self, planned: Planned, progress: Progress) -> float | None:
        """Return tokens per second since the first step reported, padding included."""
        now = time.monotonic()
        if progress.step == 0:
            return None
        if self._first is None:
            self._first = (progress.step, now)
        step, since = self._first
        scenario = planned.experiment.scenario
        tokens = scenario.train.global_batch_size * scenario.data.sequence_length
        return (progress.step - step) * tokens / (now - since) if now > since else None


def make_reporter(quiet: bool) -> Reporter:
    """Return a live line on a terminal, plain lines elsewhere, nothing when quiet."""
    console = Console(stderr=True, highlight=False)
    if quiet:
        return Reporter()
    if console.is_terminal and sys.stderr.isatty():
        return LiveReporter(console)
    return LineReporter(console)


def duration(seconds: float) -> str:
    """Format as `45 s`, `3 min 20 s` or `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
