"""`accel-bench scenarios import`: convert another program's experiments to scenarios."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from accel_bench.cli.output import print_aside
from accel_bench.documents.escaping import plain

WRONG = 2
"""Exit code for misspelt or unknown names."""


def import_scenarios(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER_OR_FILE",
            help="A configuration of axolotl, LLaMA-Factory or TRL, TrainingArguments as JSON, "
            "adapter_config.json, a checkout of fms-acceleration, or the IPFS framework's JSON.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where to.")],
    devices: Annotated[
        str, typer.Option(metavar="1,2", help="Numbers of devices, for fms-acceleration.")
    ] = "1,2",
    batch_sizes: Annotated[
        str, typer.Option(metavar="4,8", help="Samples in a step, for fms-acceleration.")
    ] = "4,8",
    lengths: Annotated[
        str, typer.Option(metavar="4096", help="Sequence lengths, for fms-acceleration.")
    ] = "4096",
) -> None:
    """Write another program's experiments as scenarios and stacks, and report problems.

    The set of experiments stays the same: scenarios x configurations x models x batch sizes x
    devices, with the other program's defaults. Names that are misspelt or lead nowhere, and
    settings without a counterpart, are reported with file and line. The exit code is 2 for wrong
    names.
    """
    from accel_bench.analysis.wording import count
    from accel_bench.errors import ImportFileError
    from accel_bench_interop import configured, fms_scenarios, ipfs_config
    from accel_bench_interop.mapping import Findings
    from accel_bench_interop.scenario_writer import stack_text, write_files

    if not source.exists():
        raise ImportFileError(f"{source}: there is no such file or folder")
    findings = Findings()
    stacks: dict[str, fms_scenarios.Uses] = {}
    if source.is_file() and (converted := configured.read_scenario(source, findings)):
        scenarios = [converted]
    elif source.is_file():
        scenarios = ipfs_config.read_config(source, findings)
    else:
        numbers = _numbers(batch_sizes), _numbers(devices), _numbers(lengths)
        matrix = fms_scenarios.SweepMatrix(*numbers)
        scenarios, stacks = fms_scenarios.read_folder(source, matrix, findings)
    kept = [scenario for scenario in scenarios if scenario.stacks]
    files = {f"{scenario.name}.yaml": scenario.text() for scenario in kept}
    files |= {f"stacks/{name}.yaml": stack_text(uses, str(source)) for name, uses in stacks.items()}
    write_files(output, files)
    for line in findings.lines():
        print_aside(plain(line))
    for scenario in kept:
        typer.echo(
            plain(f"{output / scenario.name}.yaml: {count(scenario.experiments, 'experiment')}")
        )
    if findings.wrong:
        raise typer.Exit(WRONG)


def _numbers(text: str) -> list[int]:
    """Return the positive integers of a comma-separated list.

    Raises ImportFileError if the list is empty or has anything else.
    """
    from accel_bench.errors import ImportFileError

    parts = [part.strip() for part in text.replace(",", " ").split()]
    if not parts or not all(part.isdigit() and int(part) for part in parts):
        raise ImportFileError(f"{text!r}: expected positive whole numbers, such as 1,2")
    return [int(part) for part in parts]
