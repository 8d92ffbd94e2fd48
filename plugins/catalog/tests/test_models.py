"""`accel-bench catalog models` prints the catalog, for people and for programs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from accel_bench_catalog import count
from accel_bench_catalog.count_impl import count_model
from accel_bench_catalog.models import app
from click.testing import Result
from imported_modules import imported
from typer.testing import CliRunner

from accel_bench.analysis.wording import parameters
from accel_bench.catalog.models import list_cards, read_card
from accel_bench.documents import presets
from accel_bench.errors import ScenarioError


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count in this process, which has torch already: a process each takes seconds."""
    monkeypatch.setattr(count, "count_model", count_model)


def test_the_list_has_a_row_for_every_model() -> None:
    printed = CliRunner().invoke(app, ["list"]).output
    for name, card in list_cards().items():
        assert name in printed
        assert card.architecture in printed
        assert f" {parameters(card.parameters)} " in printed


def test_the_list_as_json_holds_the_figures_as_numbers() -> None:
    rows = json.loads(CliRunner().invoke(app, ["list", "--format", "json"]).output)
    assert {row["name"]: row["parameters"] for row in rows} == {
        name: card.parameters for name, card in list_cards().items()
    }


def show(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["show", *arguments])


def shown(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(show(*arguments, "--format", "json").output))


@pytest.mark.usefixtures("counted_here")
def test_showing_a_model_as_json_gives_its_whole_card_and_what_follows_from_it() -> None:
    assert shown("opt-125m") == {
        "name": "opt-125m",
        **read_card("opt-125m").model_dump(mode="json"),
        "matmul_parameters": 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50272 * 768,
        "active_matmul_parameters": 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 50272 * 768,
        "sequence_length": None,
        "flops_per_token": None,
    }


def test_a_sequence_length_adds_the_flops_of_a_token_under_both_conventions() -> None:
    figures = shown("llama-2-7b", "--sequence-length", "4096")
    assert figures["parameters"] == 6_738_415_616
    assert figures["matmul_parameters"] == 6_607_077_376
    assert figures["flops_per_token"] == {"causal": 42_863_689_728, "non_causal": 46_084_915_200}
    teraflops = 10_690.01 * figures["flops_per_token"]["non_causal"] / 1e12
    assert round(teraflops, 2) == 492.65


@pytest.mark.usefixtures("counted_here")
def test_a_mixture_of_experts_shows_what_a_token_uses_of_it() -> None:
    figures = shown("mixtral-8x7b", "--sequence-length", "4096")
    assert figures["matmul_parameters"] - figures["active_matmul_parameters"] == (
        32 * 6 * 3 * 4096 * 14336
    )


@pytest.mark.usefixtures("counted_here")
def test_the_table_holds_the_same_figures_in_groups_of_digits() -> None:
    printed = show("llama-2-7b", "--sequence-length", "4096").output
    for row in (
        r"matmul_parameters +6,607,077,376",
        r"flops_per_token\.causal +42,863,689,728",
        r"flops_per_token\.non_causal +46,084,915,200",
    ):
        assert re.search(rf"^{row}$", re.sub(r" +$", "", printed, flags=re.MULTILINE), re.MULTILINE)


@pytest.mark.usefixtures("counted_here")
def test_more_tokens_than_learned_positions_are_refused() -> None:
    error = show("gpt2", "--sequence-length", "1025").exception
    assert isinstance(error, ScenarioError)
    assert "1024 learned positions" in str(error)
    assert shown("gpt2", "--sequence-length", "1024")["flops_per_token"]


@pytest.mark.parametrize("length", ["0", "-1", "many"])
def test_a_length_that_is_none_is_a_usage_error(length: str) -> None:
    assert show("gpt2", "--sequence-length", length).exit_code == 2


@pytest.mark.usefixtures("counted_here")
def test_a_model_that_is_not_understood_shows_null_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    text = "description: d\narchitecture: A\nmodel_type: m\nsource: s\nparameters: 7\n"
    (tmp_path / "models" / "other.yaml").write_text(text + "config: {a: 1}\n")
    monkeypatch.setattr(presets, "preset_roots", lambda: [tmp_path])
    result = show("other", "--sequence-length", "8", "--format", "json")
    assert "note: FLOPs and matmuls are not known: transformers has no model type 'm'" in (
        result.stderr
    )
    figures = json.loads(result.stdout)
    assert figures["parameters"] == 7
    assert figures["matmul_parameters"] is None
    assert figures["flops_per_token"] is None


@pytest.mark.usefixtures("counted_here")
def test_showing_a_model_as_a_table_names_each_figure_of_its_configuration() -> None:
    printed = CliRunner().invoke(app, ["show", "opt-125m"]).output
    assert all(f"config.{key}" in printed for key in read_card("opt-125m").config)


def test_an_unknown_name_is_left_to_the_program_to_report() -> None:
    assert isinstance(CliRunner().invoke(app, ["show", "nothing"]).exception, ScenarioError)


def test_importing_the_command_imports_neither_pydantic_nor_rich_tables() -> None:
    heavy = {"pydantic", "torch", "rich.table", "yaml"}
    assert not imported("import accel_bench_catalog.models", heavy)
