"""Tables of learning: final loss, time to a loss, the best rate, stability, memory growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from accel_bench.analysis.statistics.estimators import Interval
from accel_bench.analysis.wording import count, finding_words, label, rate, significant, usd
from accel_bench.report.table import (
    EMPTY,
    Column,
    Line,
    Report,
    Section,
    Table,
    columns_of,
    number_column,
    reader,
)
from accel_bench_report.learning.rates import MINIMUM_SEEDS
from accel_bench_report.learning.schema import (
    SOONER,
    BestLearningRate,
    ConvergenceDocument,
    CurvePoint,
    ExperimentLearning,
    RateLearning,
    Stability,
)

WIDTH = 100
"""Width of the text in characters if the output is no terminal."""

NO_CURVE = "no experiment has a loss curve"

EXCLUDED = "seconds are those of training steps, without start-up and evaluations"


def convergence_report(document: ConvergenceDocument, curves: bool = False) -> Report:
    """Return the report of learning: sentences, tables and notes; with `curves` also all curves."""
    tables = [*learning_tables(document)]
    if curves:
        tables += curve_tables(document)
    notes = [NO_CURVE] if not document.experiments else list(_notes(document))
    points = [Line(row=row, point=point) for row in document.experiments for point in row.curve]
    return Report(
        sections=[Section(headline=answer(document), tables=tables, notes=notes)],
        document=document,
        flat=Table(FLAT, points),
        width=WIDTH,
    )


def learning_tables(document: ConvergenceDocument) -> Iterator[Table]:
    """Yield the tables of learning that pages of `report` show too."""
    rows = document.experiments
    if not rows:
        return
    kinds = {row.loss_kind for row in rows}
    kind = f"{kinds.pop()} loss" if len(kinds) == 1 else "loss"
    yield Table(_priced(document, ENDS), rows, f"{kind} before and after training")
    if document.loss is not None:
        title = f"{kind} of {document.loss:g} reached after (medians, 95 % bootstrap intervals)"
        yield Table(_priced(document, TO_LOSS), rows, title)
    for best in document.learning_rates:
        yield Table(RATES, best.rates, rate_title(best), [rate_sentence(best)])
    if any(row.stability.seeds > 1 for row in rows):
        yield Table(STABILITY, rows, "loss at the end over seeds")
    tested = [row for row in rows if row.memory_growth.verdict != "not tested"]
    if tested:
        yield Table(GROWTH, tested, "memory over the steps after the measured window")
    evaluated = [row for row in rows if row.evaluation]
    if evaluated:
        yield Table(EVALUATION, evaluated, "evaluation of held-out samples, not compiled")


def curve_tables(document: ConvergenceDocument) -> Iterator[Table]:
    """Yield a table of each experiment's learning curve."""
    for row in document.experiments:
        yield Table(_priced(document, CURVE), row.curve, f"{label(row)}: {row.loss_kind} loss")


def answer(document: ConvergenceDocument) -> str:
    """Return sentences on the loss to reach, the best rates, growing memory, and divergence."""
    parts = [*_reached(document), *map(rate_sentence, document.learning_rates)]
    grows = [row for row in document.experiments if row.memory_growth.verdict == "holds"]
    parts += [f"memory of {label(row)} grows by {_slope(row)} bytes a step" for row in grows]
    diverged = [row for row in document.experiments if row.stability.diverged]
    parts += [
        f"{label(row)} diverged with {stability.diverged} of {count(stability.seeds, 'seed')}"
        for row in diverged
        for stability in [row.stability]
    ]
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts)


def rate_title(best: BestLearningRate) -> str:
    """Return the title of a table of learning rates, with its stack, loss and steps."""
    after = count(best.steps, "step")
    return f"learning rates of {label(best)}: {best.loss_kind} loss after {after}"


def rate_sentence(best: BestLearningRate) -> str:
    """Return a sentence with the best learning rate, or the reason for having none."""
    name = label(best)
    if best.best is None:
        return f"no learning rate of {name} trained without diverging"
    lowest = next(tried for tried in best.rates if tried.learning_rate == best.best)
    seeds = count(lowest.seeds, "seed")
    end = "; it is at the end of what was tried" if best.at_end else ""
    if best.verdict == "holds":
        return f"the best learning rate of {name} is {best.best:g} ({seeds}){end}"
    more = "; it takes three seeds or more (--seeds 5)" if lowest.seeds < MINIMUM_SEEDS else ""
    return (
        f"the best learning rate of {name} is inconclusive: {best.best:g} has the lowest loss "
        f"({seeds}){more}{end}"
    )


def _reached(document: ConvergenceDocument) -> Iterator[str]:
    for row in document.experiments:
        to_loss = row.to_loss
        if to_loss is None or to_loss.verdict_word == "baseline":
            continue
        if not to_loss.reached:
            yield f"{label(row)} did not reach a loss of {to_loss.loss:g}"
        elif to_loss.verdict not in SOONER:
            yield f"it is open whether {label(row)} reaches {to_loss.loss:g} sooner"
        else:
            times = (
                f", {_interval(ratio_text)(to_loss.ratio)} times as soon" if to_loss.ratio else ""
            )
            word = to_loss.verdict_word
            yield f"{label(row)} reaches {to_loss.loss:g} {word} than the baseline{times}"


def _notes(document: ConvergenceDocument) -> Iterator[str]:
    yield EXCLUDED
    if document.tariff:
        yield document.tariff.note
    if any(row.loss_kind == "training" for row in document.experiments):
        yield (
            "training loss, smoothed over 5 steps: data.held_out holds samples out to evaluate on"
        )
    yield from dict.fromkeys(note for row in document.experiments for note in row.notes)


def _slope(row: ExperimentLearning) -> str:
    slope = row.memory_growth.bytes_per_step
    return _interval(lambda value: f"{value:,.0f}")(slope) if slope else EMPTY


def _interval(form: Callable[[float], str]) -> Callable[[Interval], str]:
    """Return a formatter of intervals, such as `1.23 [1.20, 1.26]`; an unknown end is `-`."""

    def text(interval: Interval) -> str:
        if interval.low is None:
            return form(interval.median)
        high = EMPTY if interval.high is None else form(interval.high)
        return f"{form(interval.median)} [{form(interval.low)}, {high}]"

    return text


def ratio_text(value: float) -> str:
    """Return a ratio as text with two decimals."""
    return f"{value:.2f}"


def loss_text(value: float) -> str:
    """Return a loss as text with four significant digits."""
    return significant(value, 4)


def _loss_at(place: int) -> Callable[[ExperimentLearning], Interval | None]:
    """Return a function that reads a row's loss at point `place` of its curve: 0 first, -1 last."""

    return lambda row: _loss_of(row.curve[place]) if row.curve else None


def _loss_of(one: CurvePoint | RateLearning) -> Interval | None:
    return None if one.loss is None else Interval(median=one.loss, low=one.low, high=one.high)


def _at_end(name: str) -> Callable[[ExperimentLearning], Any]:
    return lambda row: getattr(row.curve[-1], name) if row.curve else None


def _seeds(row: ExperimentLearning) -> str:
    return f"{row.runs} ({count(row.stability.seeds, 'seed')})"


def _times(found: Any) -> str:
    return f"{found.reached} of {found.runs}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _seconds(value: float) -> str:
    return significant(value, 3) if value < 100 else f"{value:,.0f}"


def _priced(document: ConvergenceDocument, columns: Sequence[Column]) -> list[Column]:
    """Return the columns, without the cost column if there is no price."""
    return [column for column in columns if document.tariff is not None or column.header != "cost"]


NAME = Column("stack", label, kind="name")

ENDS = (
    NAME,
    Column("runs", _seeds, kind="number"),
    Column("before", _loss_at(0), form=_interval(loss_text), kind="number"),
    Column("after", _loss_at(-1), unit="mean [95 %]", form=_interval(loss_text), kind="number"),
    Column("steps", _at_end("steps"), form=_whole, kind="number"),
    Column("tokens", _at_end("tokens"), form=_whole, kind="number"),
    Column("seconds", _at_end("seconds"), unit="s", form=_seconds, kind="number"),
    Column("cost", _at_end("usd"), unit="USD", form=usd, kind="number"),
)

TO_LOSS = (
    NAME,
    number_column("to_loss", "reached", "runs", _times),
    number_column("to_loss.steps", "steps", "", _interval(_whole)),
    number_column("to_loss.tokens", "tokens", "", _interval(_whole)),
    number_column("to_loss.seconds", "time", "s", _interval(_seconds)),
    number_column("to_loss.usd", "cost", "USD", _interval(usd)),
    number_column("to_loss.ratio", "times as soon", "", _interval(ratio_text)),
    Column("verdict", reader("to_loss.verdict_word"), kind="word"),
)

RATES = (
    number_column("learning_rate", "learning rate", "", "{:g}".format),
    Column("loss", _loss_of, unit="mean [95 %]", form=_interval(loss_text), kind="number"),
    number_column("seeds"),
    number_column("diverged", unit="seeds"),
)

STABILITY = (
    NAME,
    number_column("stability.seeds", "seeds"),
    number_column("stability.diverged", "diverged", "seeds"),
    number_column("stability.mean", "mean", "", loss_text),
    number_column(
        "stability.standard_deviation", "standard deviation", "[95 %]", _interval("{:.2g}".format)
    ),
    number_column("stability.lowest", "lowest", "", loss_text),
    number_column("stability.highest", "highest", "", loss_text),
)

GROWS = finding_words("grows", "no growth found")
"""Words for the verdicts on memory growth."""

GROWTH = (
    NAME,
    Column("kind", reader("memory_growth.kind"), "memory", kind="word"),
    number_column(
        "memory_growth.bytes_per_step", "growth", "bytes/step [95 %]", _interval(_whole)
    ),
    number_column("memory_growth.steps", "steps"),
    Column("growing", lambda row: f"{row.memory_growth.growing} of {row.memory_growth.runs}",
           unit="runs", kind="number"),
    Column("verdict", reader("memory_growth.verdict"), form=GROWS.__getitem__, kind="word"),
)  # fmt: skip

EVALUATION = (
    NAME,
    number_column("evaluation.samples", "samples", "", _whole),
    *(
        number_column(f"evaluation.{name}_per_second", title, unit, _interval(rate))
        for name, title, unit in (
            ("first_samples", "before training", "samples/s"),
            ("samples", "after", "samples/s"),
            ("tokens", "after", "tokens/s"),
        )
    ),
)

CURVE = (
    number_column("steps", form=_whole),
    number_column("tokens", form=_whole),
    number_column("seconds", "", "s", _seconds),
    number_column("usd", "cost", "USD", usd),
    *(number_column(name, form=loss_text) for name in ("loss", "low", "high")),
)

FLAT = (
    *columns_of(ExperimentLearning, "row", without="stability"),
    *columns_of(CurvePoint, "point"),
    *columns_of(Stability, "row.stability"),
)
"""Columns of the CSV, which has a row for each point of each curve."""
