"""`accel-bench data profile`: the lengths of a data set as a histogram that can be shared."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_bench.cli.options import Names, takes

PROMPTS = ("prompt", "instruction", "question")
"""Usual names of a prompt's field."""

ANSWERS = ("answer", "completion", "output", "response")
"""Usual names of an answer's field."""


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Options of `data profile`."""

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

    Rows with messages, or with prompt and answer, are read as instructions, others as text; `--set
    data.use=...`, and the options of that plugin, say otherwise.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.documents.escaping import printable
    from accel_bench.documents.files import write_atomically
    from accel_bench.errors import ScenarioError
    from accel_bench_data_profile.histogram import histogram_of, text_of

    if options.output.exists():
        raise ScenarioError(f"{options.output} is already there; nothing is overwritten")
    found = histogram_of(_lengths(options))
    write_atomically(options.output, [text_of(found)])
    mean = f"{count(found.samples, 'sample')}, mean {found.tokens / found.samples:,.1f} tokens"
    use = f"data: {{use: length-profile, path: {options.output}}}"
    typer.echo(printable(f"written: {options.output}: {mean}; {use}"))


def _lengths(options: ProfileOptions) -> list[int]:
    """Return the lengths, by a process that reads the data. Raises ScenarioError, WorkerError."""
    from accel_bench.cli.request import parse_overrides, single_draft
    from accel_bench.machine.info import read_machine
    from accel_bench.planning.request import PlanRequest
    from accel_bench.runner.purpose import ask_ranks, plan_stack

    data = {
        **_guessed(options.file),
        "source": "path",
        "path": str(options.file),
        "tokenizer": options.tokenizer,
        "packing": False,
        "sequence_length": 16_777_216,
        "limit_bytes": 2**34,
    }
    draft, machine = single_draft("quickstart", "data profile"), read_machine()
    draft.set("data", data, str(options.file))
    overrides = parse_overrides(options.set_ or [], {})
    request = PlanRequest(overrides=overrides, build_environments=False, force=True)
    planned = plan_stack(draft, machine, request, "baseline")
    (answer, *_) = ask_ranks("lengths", planned, machine, one_process=True)
    found: list[int] = json.loads(answer)
    return found


def _guessed(file: Path) -> dict[str, Any]:
    """Return the plugin that reads a file, and the names of its fields, by its first row."""
    keys: set[str] = set()
    if file.suffix == ".jsonl" and file.is_file():
        with file.open(encoding="utf8", errors="replace") as lines:
            try:
                row = json.loads(lines.readline(2**20))
                keys = set(row) if isinstance(row, dict) else set()
            except ValueError:
                keys = set()
    messages = next((key for key in ("messages", "conversations") if key in keys), None)
    if messages:
        return {"use": "instructions", "messages": messages}
    answer = next(
        (key for key in ("answer", "completion", "output", "response") if key in keys), ""
    )
    prompt = next((key for key in ("prompt", "instruction", "question") if key in keys), "")
    if answer and prompt:
        return {"use": "instructions", "prompt": prompt, "answer": answer}
    return {"use": "text"}
