"""`accel-bench models`: what the catalogue holds."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_bench.cli.output import Format, print_json, print_table

app = typer.Typer(
    no_args_is_help=True, help="Models of the catalogue, with their published figures."
)


@app.command("list")
def list_models(output: Format = "table") -> None:
    """List the models that `model.id` can name without a download."""
    from accel_bench.scenario.catalogue import list_cards

    columns = ("architecture", "parameters", "description")
    rows = [
        {"name": name, **card.model_dump(include=set(columns))}
        for name, card in list_cards().items()
    ]
    if output == "json":
        print_json([{key: row[key] for key in ("name", *columns)} for row in rows])
    else:
        print_table(
            ("name", *columns),
            [
                (row["name"], row["architecture"], f"{row['parameters']:,}", row["description"])
                for row in rows
            ],
        )


@app.command("show")
def show_model(
    name: Annotated[str, typer.Argument(help="A name that `models list` prints.")],
    output: Format = "table",
) -> None:
    """Show all published figures of one model."""
    from accel_bench.scenario.catalogue import read_card

    card = read_card(name).model_dump(mode="json")
    if output == "json":
        print_json({"name": name, **card})
        return
    config = card.pop("config")
    card["parameters"] = f"{card['parameters']:,}"
    rows = {"name": name, **card, **{f"config.{key}": value for key, value in config.items()}}
    print_table(("key", "value"), [(key, str(value)) for key, value in rows.items()])
