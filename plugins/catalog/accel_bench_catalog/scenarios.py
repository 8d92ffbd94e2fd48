"""`accel-bench scenarios`: list, check and write scenarios."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accel_bench.cli.output import AnyFormat, OutputFormat, print_aside, print_report
from accel_bench.documents.escaping import printable

if TYPE_CHECKING:
    from accel_bench.scenario.models import ScenarioFile

app = typer.Typer(help="Scenario files: list, show, check, write.")


@app.command("list")
def list_scenarios(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Only those with all these words, such as fairseq2."),
    ] = None,
    output: OutputFormat = "table",
) -> None:
    """List the scenarios that `accel-bench run NAME` knows."""
    from accel_bench.cli.output import print_rows
    from accel_bench.documents.presets import find_presets
    from accel_bench.errors import ScenarioError
    from accel_bench.planning.resolve import resolve
    from accel_bench.scenario.find import read_draft
    from accel_bench_catalog.view import SCENARIOS

    rows = []
    for name, path in sorted(find_presets("scenarios").items()):
        try:
            file = resolve(read_draft(path)).scenario
        except ScenarioError as error:  # as where what it extends was taken away
            why = f"cannot be used: {error}"
            row = {"name": name, "slow": False, "needs": [], "stacks": [], "description": why}
        else:
            row = {
                "name": name,
                "slow": file.slow,
                "needs": _needs_of(file),
                "stacks": list(file.stacks),
                "description": file.description,
            }
        text = f"{name} {row['description']}".lower()
        if all(word.lower() in text for word in words or ()):
            rows.append(row)
    print_rows(SCENARIOS, rows, output)


def _needs_of(file: ScenarioFile) -> list[str]:
    """Return what a scenario needs that not every machine has, such as `1 GPU of 24 GB`.

    The texts include the extras of the plugins in its slots and stacks.
    """
    return [*_devices(file), *(f"extra {extra}" for extra in _extras(file))]


def _devices(file: ScenarioFile) -> Iterator[str]:
    resources = file.resources
    number = resources.world_size
    if resources.device in ("auto", "cpu"):
        if number > 1:
            yield f"{number} devices" if resources.device == "auto" else f"{number} processes"
        return
    kind = "GPU" if resources.device == "cuda" else f"{resources.device} device"
    memory = resources.device_memory_gib
    size = f" of {memory} GB" if memory else ""
    yield f"{number} {kind}{'s' if number > 1 else ''}{size}"


def _extras(file: ScenarioFile) -> list[str]:
    from accel_bench.plugins.shipped import extras

    known = extras()
    used = {getattr(file, slot).use for slot in file.SLOTS}
    used |= {use.use for stack in file.stacks.values() for use in stack.use}
    return sorted({known[name].extra for name in used if name in known})


@app.command("show")
def show(name: Annotated[str, typer.Argument(help="A name that `scenarios list` prints.")]) -> None:
    """Print the file of a shipped scenario."""
    from accel_bench.documents.presets import preset_path

    typer.echo(printable(preset_path("scenarios", name).read_text(encoding="utf8").rstrip()))


@app.command("check")
def check(
    files: Annotated[list[str], typer.Argument(help="Scenario files, folders, or names.")],
) -> None:
    """Check scenario files and options of plugins, and run nothing.

    Exits with 2 if a file is wrong.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.errors import AccelBenchError
    from accel_bench.machine.info import read_machine
    from accel_bench.planning.plan import PlanRequest, make_plan
    from accel_bench.scenario.find import find_drafts

    machine, wrong = read_machine(), 0
    # A file is right or wrong wherever it is read.
    request = PlanRequest(
        allow_environment=True,
        force=True,
        oversubscribe=True,
        build_environments=False,
        stand_ins=True,
    )
    for name in files:
        try:
            for draft in find_drafts([name]):
                plan = make_plan(draft, machine, request)
                but = f"but {plan.nothing}" if plan.nothing else f"{count(plan.runs, 'run')} here"
                typer.echo(printable(f"{draft.source}: ok, {but}"))
        except AccelBenchError as error:
            wrong += 1
            print_aside(printable(str(error)))
    raise typer.Exit(2 if wrong else 0)


@app.command("new")
def new_scenario(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, such as my.yaml.")],
    like: Annotated[str, typer.Option(help="A name that `scenarios` lists.")] = "quickstart",
) -> None:
    """Write a scenario to edit: a copy of a shipped scenario."""
    from accel_bench.documents.files import write_atomically
    from accel_bench.documents.presets import preset_path
    from accel_bench.errors import ScenarioError

    text = preset_path("scenarios", like).read_text(encoding="utf8")
    if file.exists():
        raise ScenarioError(f"{file} is already there; nothing is overwritten, choose another name")
    write_atomically(file, [text])
    typer.echo(printable(f"written: {file}; `accel-bench scenarios check {file}` checks it"))


@app.command("schema")
def schema() -> None:
    """Print the JSON schema of scenario files, for editors."""
    from accel_bench.cli.output import print_json
    from accel_bench_catalog.scenario_keys import editor_schema

    print_json(editor_schema())


@app.command("keys")
def keys(output: AnyFormat = "table") -> None:
    """List all keys of scenario files.

    The list has each key's values, its default and its meaning.

    Options of plugins are keys beside `use`; `accel-bench plugins show NAME` lists them.
    """
    from accel_bench.report.table import Report, Section, Table, paths
    from accel_bench_catalog.scenario_keys import ScenarioKey, scenario_keys

    rows = scenario_keys()
    table = Table(paths("", " ".join(ScenarioKey._fields)), rows)
    document = [row._asdict() for row in rows]
    print_report(Report([Section(tables=[table])], document, table), output)
