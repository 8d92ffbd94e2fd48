"""One `accel-bench estimate` from its options to its exit code."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress

from accel_bench.catalog.hardware import named_hardware
from accel_bench.catalog.prices import read_prices
from accel_bench.cli.output import print_report, print_text
from accel_bench.cli.request import one_draft, parse_overrides
from accel_bench.errors import AccelBenchError, NothingToRunError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.duration import recent_results
from accel_bench.planning.plan import PlanRequest
from accel_bench.result import Result
from accel_bench.scenario.draft import Draft
from accel_bench.scenario.sweep import LENGTH
from accel_bench.store.database import open_store
from accel_bench_advise.estimate import EstimateOptions
from accel_bench_advise.estimates.estimator import Estimator
from accel_bench_advise.estimates.lengths import read_lengths, summarize_lengths
from accel_bench_advise.estimates.schema import EstimateDocument, LengthSummary
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.view import estimate_report

NOT_FITTING = 1
"""Exit code of `--fits` where something does not fit."""


def run_estimate(options: EstimateOptions) -> int:
    """Plan the scenario for the device, estimate each of its experiments, and print them.

    Returns the exit code. Raises AccelBenchError where nothing can be estimated.
    """
    if options.gpu and options.fits:
        raise ScenarioError("--fits names the device already; leave --gpu out")
    if options.tokens is not None and not 0 < options.tokens < float("inf"):
        raise ScenarioError(f"--tokens must be a positive number, not {options.tokens}")
    draft, name = one_draft(options.file, "estimate"), options.gpu or options.fits
    lengths = _lengths(options, draft)
    request = PlanRequest(
        plugins=tuple(options.plugin or ()),
        only=tuple(options.only or ()),
        no_baseline=bool(options.only),
        overrides=(
            *parse_overrides(options.set_ or [], {}),
            *([(LENGTH, lengths.sequence_length)] if lengths else []),
        ),
        trust_remote_code=options.trust_remote_code,
    )
    with closing(Simulator(options.trust_remote_code)) as simulator:
        estimator = Estimator(
            simulator,
            draft,
            request,
            read_machine(),
            _stored(options.results),
            read_prices(),
            options.tokens or lengths,
            named_hardware(name) if name else None,
            limits=not options.no_limits,
        )
        found = tuple(estimator.estimate(planned) for planned in estimator.plan().planned)
    if options.fits and options.output == "table":
        print_text("\n".join(one.answer or one.problem for one in found))
    else:
        document = EstimateDocument(for_tokens=options.tokens, lengths=lengths, estimates=found)
        print_report(estimate_report(document), options.output)
    if found and all(one.problem for one in found):
        raise NothingToRunError(found[0].problem)
    failing = any(one.memory and one.memory.fit == "does not fit" for one in found)
    return NOT_FITTING if options.fits and failing else 0


def _lengths(options: EstimateOptions, draft: Draft) -> LengthSummary | None:
    """Summarize the file of lengths. Raises ScenarioError where a length is swept or set too."""
    if options.lengths is None:
        return None
    swept = draft.data.get("sweep") or {}
    changed = [key for key, _ in parse_overrides(options.set_ or [], {})]
    for where, keys in (("the scenario's sweep", swept), ("--set", changed)):
        if any(key in (LENGTH, f"sweep.{LENGTH}") for key in keys):
            raise ScenarioError(
                f"--lengths chooses {LENGTH}, which {where} gives too; leave one of the two out"
            )
    return summarize_lengths(read_lengths(options.lengths))


def _stored(place: str) -> list[Result]:
    """Return the newest stored results; none where there is no store."""
    with ExitStack() as stack, suppress(AccelBenchError):
        return recent_results(stack.enter_context(open_store(place, write=False)))
    return []
