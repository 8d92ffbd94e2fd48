"""Tables of `recommend`: for one model, for a family, and for all that fit a device."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from accel_bench.analysis.wording import (
    assignments,
    count,
    duration,
    finding_words,
    grouped_by_reason,
    join_names,
    label,
    milliseconds,
    percent,
    rate,
    rate_interval,
    ratio_interval,
    settings,
    significant,
    size,
    usd,
    with_spread,
)
from accel_bench.documents.base import JsonValue
from accel_bench.documents.presets import find_presets
from accel_bench.errors import ScenarioError
from accel_bench.plugins.registry import installed
from accel_bench.report.table import (
    Column,
    Report,
    Section,
    Table,
    columns_of,
    number_column,
    reader,
)
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.find import find_drafts
from accel_bench_advise.estimates.schema import FITS
from accel_bench_advise.estimates.view import span_text
from accel_bench_advise.recommendation.family import FamilyRecommendation, FamilyRow
from accel_bench_advise.recommendation.schema import (
    AS_FAST,
    CandidateRow,
    Evidence,
    FittingModel,
    FittingModels,
    LeftOut,
    MemoryUse,
    OtherCandidate,
    Recommendation,
)


def recommend_report(document: Recommendation) -> Report:
    """Return the report of a recommendation: answer, stacks, devices and the next commands."""
    lines = list(document.others)
    if best := document.recommended:
        lines.insert(
            0, OtherCandidate(outcome="recommended", why="", of_the_best=AS_FAST, row=best)
        )
    tables = [_used(STACKS, lines, "stacks")] if lines else []
    if len(document.offers) > 1 or (document.offers and not document.recommended):
        tables.append(_used(OFFERS, document.offers, "devices, the cheapest first"))
    title = {"estimated": "ESTIMATED", "inconclusive": "INCONCLUSIVE"}
    section = Section(
        title=title.get(document.certainty, ""),
        headline=document.answer,
        tables=tables,
        notes=list(_notes(document, lines)),
    )
    sections = [section, *_commands(document), *_in_your_script(document)]
    return Report(sections, document, Table(FLAT, lines))


def models_report(document: FittingModels) -> Report:
    """Return the report of models that fit a device, with the changes that they need."""
    fitting = sum(model.fit == "holds" for model in document.models)
    section = Section(
        title="ESTIMATED",
        headline=(
            f"{fitting} of {count(len(document.models), 'model')} of the catalog fit on "
            f"{document.gpu} with the work of {document.scenario}, or with the changes beside them."
        ),
        tables=[Table(MODELS, document.models)],
        notes=grouped_by_reason(
            [(model.model, model.why) for model in document.models if model.why]
        ),
    )
    return Report([section], document, Table(FLAT_MODELS, document.models))


def family_report(document: FamilyRecommendation) -> Report:
    """Return the report of a family: a row for each model, mode and device, and a summary.

    Notes name the models without stored runs.
    """
    rows = document.rows
    section = Section(
        headline=document.answer,
        tables=[_used(FAMILY, rows)] if rows else [],
        notes=list(_family_notes(document)),
    )
    return Report([section], document, Table(FLAT_FAMILY, rows))


def _used(columns: Sequence[Column], rows: Sequence[Any], title: str = "") -> Table:
    """Return a table without columns that are empty in all rows."""
    return Table([column for column in columns if any(map(column.cell, rows))], rows, title=title)


def _family_notes(document: FamilyRecommendation) -> Iterator[str]:
    measured = [
        (f"{row.model}, {row.mode}", f"measured with {settings(row.settings)}")
        for row in document.rows
        if row.recommended
    ]
    yield from grouped_by_reason(list(dict.fromkeys(measured)))
    yield from grouped_by_reason(
        [(f"{r.model}, {r.mode} on {r.device}", r.why) for r in document.rows if r.why]
    )
    yield from _left_out(document.left_out)
    if document.not_stored:
        names = join_names(list(document.not_stored), most=NAMED)
        yield (
            f"no runs are stored of {names}: `accel-bench run SCENARIO --family "
            f"{document.family}` measures, `accel-bench recommend --gpu {document.gpu or 'GPU'}` "
            "estimates what fits"
        )


def _notes(document: Recommendation, lines: list[OtherCandidate]) -> Iterator[str]:
    yield from (f"break-even: {result.sentence}" for result in document.break_even)
    reasons = [(label(line.row), line.why) for line in lines if line.why]
    yield from (f"not {text}" for text in grouped_by_reason(reasons))
    if document.kept:
        yield f"not changed, and not compared with anything else: {settings(document.kept)}"
    yield from document.advice
    yield from _left_out(document.left_out)
    yield from grouped_by_reason(
        [
            (offer.device, f"{'estimated: ' * (offer.kind == 'estimated')}{offer.problem}")
            for offer in document.offers
            if offer.problem
        ]
    )
    if document.recommended:
        runs = document.recommended.evidence.run_ids
        yield f"evidence: {', '.join(runs[:EVIDENCE])}{' ...' if len(runs) > EVIDENCE else ''}"


def _left_out(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """Yield a line for each reason why stored rows are no evidence."""
    reasons = [(row.rows, row.reason) for row in left_out]
    yield from (f"no evidence: {text}" for text in grouped_by_reason(reasons))


def _commands(document: Recommendation) -> Iterator[Section]:
    for run in document.next_runs:
        text = f"{run.command or 'no command'}\n  {run.why}"
        if run.minutes is not None:
            text += f"; about {duration(run.minutes * 60)} (from earlier runs here)"
        if run.usd is not None:
            text += f", {run.usd:,.2f} USD"
        yield Section(text=text)


def _in_your_script(document: Recommendation) -> Iterator[Section]:
    """Yield a section with the Python code and the command that apply a recommended stack."""
    if document.request.mode != "train" or document.offer is None:
        return
    request = document.request
    if row := document.recommended:
        stack, changed = row.stack, row.sweep
        work = ["--run", row.evidence.experiment_id]
    else:
        stack, changed = document.offer.stack, document.offer.settings
        estimated = {"model.id": request.model, **changed}
        work = ["--scenario", request.scenario, *assignments(estimated)]
    command = shlex.join(["accel-bench", "export", stack, "--to", "trl", *work])
    code = _code(stack, request.scenario, changed)
    yield Section(text="\n".join(["In your script:", *code, f"  {command}"]))


def _code(stack: str, scenario: str, changed: Mapping[str, JsonValue]) -> list[str]:
    """Return three lines of Python that apply a stack, with the `changed` settings of its scenario.

    The list is empty if `accel_bench.accelerate` would not know the stack.
    """
    named = find_presets("stacks").keys() | {plugin.use for plugin in installed()}
    given = json.dumps(stack)
    if draft := _defining(scenario, stack):
        given += f", scenario={json.dumps(scenario)}"
        axes: dict[str, JsonValue] = {axis: {} for axis in ("sweep", "zip") if draft.get(axis)}
        # The script's own model takes the place of the scenario's.
        own = {key: value for key, value in changed.items() if key != "model.id"}
        given += f", overrides={axes | own}" if axes | own else ""
    elif stack not in named and not named.issuperset(stack.split("+")):
        return []
    return [
        "  import accel_bench",
        f"  with accel_bench.accelerate(model, {given}) as accelerated:",
        "      train(accelerated.model)",
    ]


def _defining(scenario: str, stack: str) -> Draft | None:
    """Return a scenario's own file if it defines a stack, maybe under a shipped stack's name."""
    if scenario in find_presets("scenarios"):
        return None
    try:
        drafts = find_drafts([scenario])
    except ScenarioError:  # The file of stored runs is gone.
        return None
    for draft in drafts:
        if isinstance(stacks := draft.get("stacks"), dict) and stack in stacks:
            return draft
    return None


def _memory(value: Any) -> tuple[str, ...]:
    left = (f"({percent(value.headroom)} left)",) if value.headroom is not None else ()
    return size(value.peak_bytes), value.kind, *left


def _three(value: float) -> str:
    return significant(value, 3)


def _without_reason(verdict: str) -> str:
    """Return a verdict without its reason, for a narrow column."""
    return verdict.partition(" (")[0]


EVIDENCE = 5
"""Maximum number of run ids in a note; JSON and CSV have all."""

NAMED = 6
"""Maximum number of models without stored runs in a note."""


def _speeds(row: str) -> list[Column]:
    """Return the columns of a stack's speed; `row` is the path to the stack's row in a document."""
    return [
        number_column(f"{row}.tokens_per_second", "speed", "tokens/s", rate_interval),
        number_column(
            f"{row}.request_seconds",
            "median request",
            "ms",
            lambda value: with_spread(value, milliseconds),
        ),
    ]


def _flat(row: str) -> list[Column]:
    """Return the CSV columns of a stack; `row` is the path to the stack's row in a document."""
    return [
        *columns_of(CandidateRow, row, without="apart device memory evidence"),
        *columns_of(MemoryUse, f"{row}.memory", names="peak_bytes device_bytes headroom"),
        Column("memory_kind", reader(f"{row}.memory.kind")),
        *columns_of(Evidence, f"{row}.evidence", without="sessions"),
    ]


STACKS = (
    Column("stack", lambda line: label(line.row), kind="name"),
    Column("outcome", reader("outcome"), "what", kind="word"),
    *_speeds("row"),
    number_column("row.slowest_requests_ms", "99 of 100", "ms at most", _three),
    number_column("of_the_best", "does the job", "times as fast", ratio_interval),
    *(
        Column(f"row.{what}", reader(f"row.{what}"), what, form=_without_reason, kind="word")
        for what in ("loss", "update", "output")
    ),
    number_column("row.start_seconds", "start", "s", _three, rank=2),
    number_column("row.memory", "memory", "", _memory, rank=1),
)
"""Columns of stacks."""

FAMILY = (
    *(Column(key, reader(key), kind="name") for key in ("model", "mode", "device")),
    Column("use", lambda row: label(row.recommended) if row.recommended else None, kind="name"),
    Column("certainty", reader("certainty"), "how sure", kind="word"),
    *_speeds("recommended"),
    number_column("recommended.ratio", "times as fast", "as the baseline", ratio_interval),
    number_column("recommended.memory", "memory", "", _memory),
    Column("runner_up", reader("runner_up"), "runner-up", kind="name"),
)
"""Columns of models of a family."""

KEPT = finding_words("yes", "no")
"""Words for the verdicts on the limits."""

OFFERS = (
    Column("device", reader("device"), kind="name"),
    Column("kind", reader("kind"), kind="word"),
    Column(
        "stack",
        lambda offer: " with ".join(filter(None, (offer.stack, settings(offer.settings)))),
        kind="name",
    ),
    number_column("tokens_per_second", "speed", "tokens/s", span_text(rate)),
    number_column("hours", "time", "hours", span_text(_three), rank=1),
    number_column("usd", "in all", "USD", span_text(lambda value: f"{value:,.2f}")),
    *(
        Column(f"within_{limit}", reader(f"within_{limit}"), limit, "", KEPT.__getitem__, "word")
        for limit in ("budget", "deadline")
    ),
)
"""Columns of devices."""

MODELS = (
    Column("model", reader("model"), kind="name"),
    number_column("parameters", "parameters", "1e9", lambda value: significant(value / 1e9, 3)),
    Column("fit", reader("fit"), form=FITS.__getitem__, kind="word"),
    Column("settings", lambda model: settings(model.settings) or None, "with", rank=1),
    number_column("needed_bytes", "needed", "", span_text(size)),
    number_column("tokens_per_second", "speed", "tokens/s", span_text(rate)),
    number_column("usd_per_million_tokens", "cost", "USD/1M tokens", span_text(usd)),
)
"""Columns of models that fit."""

FLAT_MODELS = columns_of(FittingModel)
"""CSV columns of models that fit."""

FLAT = (
    *columns_of(OtherCandidate, without="row"),
    Column("device", reader("row.device")),
    *_flat("row"),
)
"""CSV columns of stacks."""

FLAT_FAMILY = (
    *columns_of(FamilyRow, without="recommended"),
    *_flat("recommended"),
)
"""CSV columns of models of a family."""
