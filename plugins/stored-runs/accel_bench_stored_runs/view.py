"""Tables and texts that `results list` and `results show` print of stored runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import yaml

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.analysis.metrics.memory import stages_of
from accel_bench.analysis.metrics.throughput import run_throughput
from accel_bench.analysis.summary import summarize
from accel_bench.analysis.tables.listing import LIST_COLUMNS, flat_figures, names_of
from accel_bench.report.table import Report, Section, Table, entry, keyed, listed
from accel_bench.report.views.run_table import details
from accel_bench.result import Provenance, RankResult, Result
from accel_bench.scenario.draft import look_up

RUN_KEYS = "run_id session round position attempt status reasons phase started_at seconds exits"
"""Names of the printed fields of a run; rounds, positions and attempts are printed from 1."""

RANK_KEYS = ("rank", "status", "reasons", "error", "device", "metrics", "effective", "evidence")
"""Names of the printed fields of a rank."""

RANKS = {
    "sweep": 1,
    "started_at": 2,
    "experiment_id": 3,
    "run_id": 3,
    "tag": 4,
    "provenance": 5,
    "attempt": 6,
    "steps_per_second": 7,
    "samples_per_second": 8,
}
"""Order in which a narrow list of runs drops columns: those with the highest number first."""

KINDS: dict[str, Literal["word", "name"]] = {
    **dict.fromkeys(("run_id", "experiment_id", "status", "started_at"), "word"),
    **dict.fromkeys(("scenario", "stack"), "name"),
}
"""Kinds of the columns in a list of runs that are neither texts nor numbers."""

MORE = "--all adds all keys, plugins, the machine, evidence, and every step"
"""Note below a report of runs that leaves facts out."""

PER_SECOND = "_per_second"
"""Suffix of the names of rates, whatever the counted elements are."""

UPDATE_KEYS = ("steps", "trained_tensors", "trained_elements", "seconds", "kept_bytes")
"""Names of the printed fields of a weight update, without its sketches."""


def listing_report(rows: Sequence[Mapping[str, Any]], left_out: int = 0) -> Report:
    """Return the report of `results list`: a row for each run, with rounds printed from 1.

    `rows` are the runs' values by column. `left_out` is the number of corrupt runs without a row.
    """
    columns = names_of(rows) or LIST_COLUMNS
    rates = (f"samples{PER_SECOND}", f"steps{PER_SECOND}")
    forms = {
        **dict.fromkeys((name for name in columns if name.endswith(PER_SECOND)), "{:,.1f}".format),
        **dict.fromkeys(rates, _short),
        "round": lambda number: str(number + 1),
        "number": "#{}".format,
    }
    shown = [
        replace(
            column,
            form=forms.get(column.key, column.form),
            kind=KINDS.get(column.key, column.kind),
            rank=RANKS.get(column.key, 0),
        )
        for column in keyed(columns, rows).columns
    ]
    more = f"{left_out:,} more runs are corrupt; `--format json` or `csv` lists all"
    table = Table(shown, rows, notes=[more] if left_out else ())
    return Report([Section(tables=[table])], rows, Table(list(map(entry, columns)), rows))


def groups_report(rows: Sequence[Mapping[str, Any]]) -> Report:
    """Return a report with a row for each group of runs: the means of its completed runs.

    `rows` are the groups' values by column.
    """
    flat = keyed(rows[0] if rows else ("runs",), rows)
    shown = [
        replace(column, form=_short, rank=number)
        if column.key.endswith(("_mean", "_min", "_max"))
        else column
        for number, column in enumerate(flat.columns)
    ]
    return Report([Section(tables=[Table(shown, rows)])], rows, flat)


def _short(number: float) -> str:
    return f"{number:,.1f}" if abs(number) >= 100 else f"{number:.4g}"


def results_report(
    results: Sequence[Result],
    folder: Path,
    labels: Mapping[str, Mapping[str, Any]] | None = None,
    whole: bool = False,
) -> Report:
    """Return the report of experiments and their runs.

    `folder` is the results folder, where the logs are. `labels` has tags and notes by run id.
    Unless `whole` is true, only changed settings, status and known figures are reported.
    """
    sections: list[Section] = []
    machine = None
    for name in dict.fromkeys(result.experiment.id for result in results):
        runs = [result for result in results if result.experiment.id == name]
        if runs[0].imported:
            sections += map(_imported, runs)
            continue
        sections.append(_experiment(runs, whole))
        for result in runs:
            if whole and result.machine != machine:
                machine = result.machine
                document = machine and machine.model_dump(mode="json")
                sections.append(Section(text=_yaml({"machine": document})))
            sections += _run(result, folder, (labels or {}).get(result.run_id, {}), whole)
    if not whole and not all(result.imported for result in results):
        sections.append(Section(notes=[MORE]))
    return Report(sections, results)


def _experiment(runs: Sequence[Result], whole: bool) -> Section:
    """Return the section of an experiment: its settings, and the seconds of each phase of a step.

    `runs` are its runs. With `whole` it has default values and plugins too.
    """
    result, experiment = runs[0], runs[0].experiment
    planned = [PlannedSummary(experiment=experiment)]
    summary = summarize(experiment.scenario.name, experiment.stack.name, planned, runs, rounds=0)
    plugins = [plugin.model_dump() for plugin in result.plugins]
    document = {
        "details": details(summary),
        "experiment": experiment.id,
        "sweep": experiment.sweep,
        "stack": experiment.stack.model_dump(mode="json", exclude_defaults=not whole),
        "plugins": plugins if whole else [],
        "notices": list(experiment.notices),
        "scenario": experiment.scenario.model_dump(mode="json", exclude_defaults=not whole),
    }
    return Section(text=_yaml(document if whole else _known(document)))


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries whose values are not null or empty."""
    return {key: value for key, value in values.items() if value not in (None, "", [], {})}


def _imported(result: Result) -> Section:
    """Return the section of an imported run: origin, settings that its file states, and figures."""
    origin = result.provenance.model_dump(mode="json", exclude={"series", "stated"})
    series = {name: len(values) for name, values in result.provenance.series.items()}
    scenario = result.experiment.scenario.model_dump(mode="json")
    stated = {key: look_up(scenario, key)[1] for key in result.provenance.stated}
    run = result.model_dump(mode="json", include=set(RUN_KEYS.split()) - {"exits"})
    document = {
        "imported": {**origin, "raw_numbers": series},
        "run": {**run, **{key: run[key] + 1 for key in ("round", "position", "attempt")}},
        "scenario": result.experiment.scenario.name,
        "stack": result.experiment.stack.name,
        "stated": stated,
        "figures": [
            metric.model_dump(mode="json", include={"name", "value", "unit", "scope", "reason"})
            for metric in result.metrics
        ],
    }
    return Section(text=_yaml(document))


def _run(result: Result, folder: Path, labels: Mapping[str, Any], whole: bool) -> Iterator[Section]:
    """Yield the report sections of one run: status, figures, log, samples, command.

    `folder` is the results folder, and `labels` has the run's tags and notes. With `whole` unknown
    values, all ranks and all steps are included.
    """
    speed = run_throughput(result)
    ranks = max(len(result.ranks), len(result.exits), 1)  # also where none left a result
    run = {
        **result.model_dump(mode="json", include=set(RUN_KEYS.split())),
        **{key: getattr(result, key) + 1 for key in ("round", "position", "attempt")},
    }
    figures = flat_figures(result)
    document = {
        "run": run if whole else _known(run),
        **_origin(result),
        **{f"{kind}s": list(texts) for kind, texts in labels.items()},
        "tokens_per_second": speed.tokens_per_second if speed else None,
        "figures": figures if whole else _known(figures),
        "logs": [str(folder / result.folder / f"rank{rank}.log") for rank in range(ranks)],
        "ranks": [_rank(rank) for rank in result.ranks if whole or not rank.status.completed],
    }
    yield Section(text=_yaml(document if whole else _known(document)))
    if result.log_tail:
        yield Section(text=_yaml({"log_tail": result.log_tail.splitlines()}))
    if whole and (samples := list(_samples(result))):
        columns = ("rank", "step", "part", "seconds", "real_tokens", "loss")
        yield Section(tables=[listed(columns, samples)])
    yield Section(text=f"repeat with: {shlex.join(result.command)}")


def _origin(result: Result) -> dict[str, Any]:
    """Return `{"provenance": ...}` for an imported run or a repeated bundle; else an empty dict."""
    if result.provenance == Provenance():
        return {}
    return {"provenance": result.provenance.model_dump(mode="json", exclude_defaults=True)}


def _rank(rank: RankResult) -> dict[str, Any]:
    """Return a rank's status, metrics, evidence and memory at each stage's end, as JSON values."""
    document = rank.model_dump(mode="json", exclude_defaults=True)
    facts = {key: document[key] for key in RANK_KEYS if key in document}
    if rank.update:
        facts["update"] = rank.update.model_dump(include=set(UPDATE_KEYS))
    if stages := stages_of(rank):
        facts["memory_by_stage"] = [stage.model_dump() for stage in stages]
    return facts


def _samples(result: Result) -> Iterator[tuple[object, ...]]:
    """Yield a table row for each step of each rank: rank, step, part, seconds, tokens, loss.

    The part is `warmup`, `discarded` or `measured`.
    """
    for rank in result.ranks:
        for part in ("warmup", "discarded", "samples") if rank.window else ():
            label = "measured" if part == "samples" else part
            for sample in getattr(rank.window, part):
                seconds = f"{sample.seconds:.6f}"
                yield rank.rank, sample.step, label, seconds, sample.real_tokens, sample.loss


def _yaml(value: object) -> str:
    """Return a value as readable YAML, with control characters escaped."""
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=100).rstrip()
