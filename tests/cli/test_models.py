"""`accel-bench models` prints the catalogue, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys

from typer.testing import CliRunner

from accel_bench.cli.models import app
from accel_bench.errors import ScenarioError
from accel_bench.scenario.catalogue import list_cards, read_card


def test_the_list_has_a_row_for_every_model() -> None:
    printed = CliRunner().invoke(app, ["list"]).output
    for name, card in list_cards().items():
        assert name in printed
        assert card.architecture in printed
        assert f"{card.parameters:,}" in printed


def test_the_list_as_json_holds_the_figures_as_numbers() -> None:
    rows = json.loads(CliRunner().invoke(app, ["list", "--format", "json"]).output)
    assert {row["name"]: row["parameters"] for row in rows} == {
        name: card.parameters for name, card in list_cards().items()
    }


def test_showing_a_model_as_json_gives_its_whole_card() -> None:
    shown = json.loads(CliRunner().invoke(app, ["show", "opt-125m", "--format", "json"]).output)
    assert shown == {"name": "opt-125m", **read_card("opt-125m").model_dump(mode="json")}


def test_showing_a_model_as_a_table_names_each_figure_of_its_configuration() -> None:
    printed = CliRunner().invoke(app, ["show", "opt-125m"]).output
    assert all(f"config.{key}" in printed for key in read_card("opt-125m").config)


def test_an_unknown_name_is_left_to_the_program_to_report() -> None:
    assert isinstance(CliRunner().invoke(app, ["show", "nothing"]).exception, ScenarioError)


def test_importing_the_command_imports_neither_pydantic_nor_rich_tables() -> None:
    program = (
        "import sys\n"
        "import accel_bench.cli.models\n"
        "print(sorted({'pydantic', 'torch', 'rich.table', 'yaml'} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
