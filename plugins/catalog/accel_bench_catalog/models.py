"""`accel-bench catalog models`: models of the catalog and their published figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_bench.cli.output import OutputFormat, print_aside, print_fields, print_rows

if TYPE_CHECKING:
    from accel_bench.catalog.models import ModelCard

app = typer.Typer(help="Models of the catalog, with their published figures.")


@app.command("list")
def list_models(output: OutputFormat = "table") -> None:
    """List the models that `model.id` can name without a download."""
    from accel_bench.catalog.models import list_cards
    from accel_bench_catalog.view import MODELS

    rows = [{"name": name, **card.model_dump()} for name, card in list_cards().items()]
    print_rows(MODELS, rows, output)


@app.command("show")
def show_model(
    name: Annotated[str, typer.Argument(help="A name that `catalog models` prints.")],
    sequence_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a sequence: adds what training computes for a token."),
    ] = None,
    output: OutputFormat = "table",
) -> None:
    """Show all published figures of one model.

    Also the figures that are counted if all its weights train.
    """
    from accel_bench.catalog.models import read_card

    card = read_card(name)
    shown = {"name": name, **card.model_dump(mode="json"), **_counted(card, sequence_length)}
    print_fields(shown, [(key, _text(value)) for key, value in _flat(shown)], output)


def _counted(card: ModelCard, length: int | None) -> dict[str, Any]:
    """Return a model's parameters in matmuls, and the FLOPs per token of training all weights.

    `length` is the sequence length in tokens; without it, FLOPs are null. All are null, with a note
    on standard error, if the model cannot be counted. Raises ScenarioError for a length beyond the
    learned positions.
    """
    from accel_bench.errors import ScenarioError
    from accel_bench.flops.formulas import model_flops
    from accel_bench_catalog.count import count_model

    count = count_model(card)
    if count.problem:
        print_aside(f"note: FLOPs and matmuls are not known: {count.problem}")
    if count.positions and length and length > count.positions:
        raise ScenarioError(
            f"--sequence-length {length}: the model has {count.positions} learned positions; "
            "name no more"
        )
    workload = count.workload
    flops = model_flops(workload, length).model_dump() if workload and length else {}
    return {
        "matmul_parameters": workload.matmul_parameters if workload else None,
        "active_matmul_parameters": workload.active_matmul_parameters if workload else None,
        "sequence_length": length,
        "flops_per_token": {key: round(value) for key, value in flops.items()} or None,
    }


def _flat(figures: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield pairs of key and value with flattened keys such as `config.hidden_size`.

    Values that are None are left out, and the configuration comes last.
    """
    for key, value in sorted(figures.items(), key=lambda item: item[0] == "config"):
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", figure) for inner, figure in value.items())
        elif value is not None:
            yield key, value


def _text(value: Any) -> str:
    large = isinstance(value, int) and abs(value) >= 1_000_000
    return f"{value:,}" if large else str(value)
