"""`accel-bench data profile`: the lengths of a data set as a histogram that can be shared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_bench.cli.options import Names, takes

if TYPE_CHECKING:
    from accel_bench.scenario.uses import Use

MESSAGES = ("messages", "conversations")
"""Usual names of the field that holds a conversation."""

CONTEXTS = ("input", "context")
"""Usual names of a further field of the prompt, besides one of `PROMPTS`."""

PROMPTS = ("prompt", "instruction", "question")
"""Usual names of the field that holds a prompt."""

ANSWERS = ("answer", "completion", "output", "response")
"""Usual names of the field that holds an answer."""

PREFERENCES = frozenset({"chosen", "rejected"})
"""Usual names of the fields that hold the better and the worse of two answers."""

FIELDS = ("messages", "prompt", "answer", "chosen", "rejected", "field")
"""Options of data plugins that name fields, in the order in which they are printed."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Command-line options of `accel-bench data profile`."""

    file: Annotated[Path, typer.Argument(help="Data: .jsonl, .parquet, .txt, or a folder.")]
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json, a folder with one, or a hub id; `train` for one.")
    ]
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to, such as lengths.json.")
    ]
    set_: Annotated[
        Names,
        typer.Option(
            "--set", metavar="data.KEY=VALUE", help="How it is read, as `data` of a scenario says."
        ),
    ] = None


@takes(ProfileOptions)
def profile(options: ProfileOptions) -> None:
    """Write the lengths of a data set's samples as counts, which hold no text.

    Rows with messages, or with prompt and answer, are read as instructions, those with a chosen
    and a rejected answer as preferences, others as text; `--set data.use=...`, and the options of
    that plugin, say otherwise. What was read is printed.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.cli.output import print_aside
    from accel_bench.documents.escaping import printable
    from accel_bench.documents.files import write_atomically
    from accel_bench.errors import ScenarioError
    from accel_bench_data_profile.histogram import histogram_of, text_of

    if options.output.exists():
        raise ScenarioError(f"{options.output} is already there; nothing is overwritten")
    if not options.output.absolute().parent.is_dir():
        raise ScenarioError(f"{options.output.parent} is no folder; make it first")
    read, used = _read(options)
    summary = histogram_of(read["lengths"])
    write_atomically(options.output, [text_of(summary)])
    mean = (
        f"{count(summary.samples, 'sample')}, mean {summary.tokens / summary.samples:,.1f} tokens"
    )
    use = f"data: {{use: length-profile, path: {options.output}}}"
    for line in (f"read as {_said(used)}", *_left_out(read, used)):
        print_aside(printable(line))
    typer.echo(printable(f"written: {options.output}: {mean}; {use}"))


def _read(options: ProfileOptions) -> tuple[dict[str, Any], Use]:
    """Return what the purpose `profile-data` returns, and the data plugin's use.

    A separate process reads the data. Raises ScenarioError if the data cannot be read, and
    WorkerError if the process fails.
    """
    from accel_bench.cli.request import parse_overrides, single_draft
    from accel_bench.machine.info import read_machine
    from accel_bench.planning.request import PlanRequest
    from accel_bench.plugins.manager import load_class
    from accel_bench.runner.purpose import ask_ranks, plan_stack
    from accel_bench.scenario.models import Scenario

    overrides = parse_overrides(options.set_ or [], {})
    guessed = _guessed(options.file)
    use = dict(overrides).get("data.use", guessed["use"])
    guessed = guessed if use == guessed["use"] else {"use": use}
    kind = load_class(use)
    data = {
        **guessed,
        "source": "path",
        "path": str(options.file),
        "tokenizer": options.tokenizer,
        "sequence_length": 16_777_216,
        "limit_bytes": 2**34,
    }
    if "packing" in kind.Options.model_fields:
        data["packing"] = False
    draft, machine = single_draft("quickstart", "data profile"), read_machine()
    draft.set("data", data, str(options.file))
    if kind.tasks and Scenario().task.use not in kind.tasks:
        draft.set("task", min(kind.tasks), f"the task of {use}")
    request = PlanRequest(overrides=overrides, build_environments=False, force=True)
    planned = plan_stack(draft, machine, request, "baseline")
    (reply, *_) = ask_ranks("profile-data", planned, machine, one_process=True)
    return json.loads(reply), planned.experiment.scenario.data


def _said(used: Use) -> str:
    """Return `PLUGIN, OPTION: VALUE, ...`, a text on how the data were read."""
    fields = (f"{key}: {used.options[key]}" for key in FIELDS if key in used.options)
    return ", ".join((used.use, *fields))


def _left_out(read: Mapping[str, Any], used: Use) -> Iterator[str]:
    """Yield lines on the rows that are not in the profile."""
    from accel_bench.analysis.wording import count

    if read.get("limited"):
        limit = used.options["limit_bytes"]
        yield f"limited: only what data.limit_bytes {limit:,} lets be read; the data go on"
    if rows := read.get("empty", 0) + read.get("samples_without_answer", 0):
        yield f"left out: {count(rows, 'row')} without an answer"


def _guessed(file: Path) -> dict[str, Any]:
    """Return options of `data` that fit a file's first rows: a plugin, and its fields' names."""
    from accel_bench_data_profile.fields import first_fields

    present = first_fields(file)
    messages, answer, prompt, context = (
        next((name for name in names if name in present), "")
        for names in (MESSAGES, ANSWERS, PROMPTS, CONTEXTS)
    )
    said: dict[str, Any] = {"prompt": [prompt, context] if context else prompt} if prompt else {}
    if PREFERENCES <= {*present}:
        return {"use": "preferences", **said}
    if messages:
        return {"use": "instructions", "messages": messages}
    if answer and said:
        return {"use": "instructions", **said, "answer": answer}
    return {"use": "text"}
