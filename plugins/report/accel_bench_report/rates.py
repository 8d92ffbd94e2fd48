"""Price of a machine's hour, given as an option or looked up in another plugin's price table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from accel_bench.analysis.metrics.hourly_rate import HourlyRate

RATES, KIND, HOURLY = "accel_bench.rates", "rate", "hourly"
"""Entry-point group of price look-ups, its kind for messages, and the entry for hourly prices."""


@dataclass(frozen=True, kw_only=True)
class PriceOptions:
    """Options that name the price of a machine, and the amount of work to price."""

    price: Annotated[float | None, typer.Option(help="US dollars for an hour of one machine.")] = (
        None
    )
    instance: Annotated[
        str | None, typer.Option(help="Kind of machine in the table of prices (`catalog prices`).")
    ] = None
    provider: Annotated[str | None, typer.Option(help="Its provider, where several have it.")] = (
        None
    )
    region: Annotated[str | None, typer.Option(help="Its region, where it has several.")] = None
    spot: Annotated[bool, typer.Option("--spot", help="Take the table's spot price.")] = False
    instances: Annotated[
        int | None,
        typer.Option(min=1, help="Machines that were used; else as many as hold the devices."),
    ] = None
    tokens: Annotated[
        float | None, typer.Option(help="Tokens of your own data, such as 1.2e9 for one epoch.")
    ] = None


def hourly_rate(options: PriceOptions) -> HourlyRate | None:
    """Return the hourly price given by the options; None if they name no price.

    The entry point `hourly` of `RATES` looks up the price of an instance. Raises PriceError for
    invalid or contradictory options or an unknown price, and PluginError if no installed plugin has
    prices.
    """
    from accel_bench.analysis.metrics.hourly_rate import HourlyRate
    from accel_bench.errors import PriceError
    from accel_bench.plugins.doors import find_entry

    for option, value in (("--price", options.price), ("--tokens", options.tokens)):
        if value is not None and not 0 < value < float("inf"):
            raise PriceError(f"{option} must be a positive number, not {value}")
    if options.instance is None:
        if options.provider or options.region or options.spot:
            raise PriceError("--provider, --region and --spot choose a price of --instance")
        given = options.price
        return None if given is None else HourlyRate(usd_per_hour=given, kind="given")
    if options.price is not None:
        raise PriceError("a cost needs --price or --instance, and not both")
    entry = find_entry(RATES, KIND, HOURLY)
    look_up = entry.load()
    with entry.blamed():
        rate: HourlyRate = look_up(options.instance, options.provider, options.region, options.spot)
    return rate
