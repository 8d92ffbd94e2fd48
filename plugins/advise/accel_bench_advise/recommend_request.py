"""Execution of `accel-bench recommend`: from its options to its exit code."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from accel_bench.analysis.wording import join_names, size
from accel_bench.catalog.hardware import NamedHardware, named_hardware
from accel_bench.catalog.models import ModelCard, list_cards, model_problems, read_card
from accel_bench.cli.output import print_aside, print_report
from accel_bench.cli.request import single_draft
from accel_bench.documents.files import read_text
from accel_bench.documents.load import load_json
from accel_bench.documents.validate import validate
from accel_bench.errors import AccelBenchError, NoResultsError, ScenarioError
from accel_bench.machine.info import available_cores, available_memory, read_machine
from accel_bench.planning.request import PlanRequest
from accel_bench.planning.resolve import resolve_request
from accel_bench.runner.interrupted import open_results
from accel_bench.scenario.sweep import LENGTH
from accel_bench.scenario.uses import ModelUse
from accel_bench.store.database import Store
from accel_bench.store.queries import condition_of, model_ids
from accel_bench.store.schema import RUNS
from accel_bench_advise.estimates.estimator import Estimator
from accel_bench_advise.estimates.lengths import read_lengths
from accel_bench_advise.estimates.simulator import Simulator
from accel_bench_advise.estimates.speed import recent_results
from accel_bench_advise.price_table import read_prices
from accel_bench_advise.recommend import RecommendOptions
from accel_bench_advise.recommendation.candidates import Stored
from accel_bench_advise.recommendation.family import WORK, recommend_family
from accel_bench_advise.recommendation.recommender import Recommender, check_request, lengths_of
from accel_bench_advise.recommendation.schema import (
    FittingModel,
    FittingModels,
    Mode,
    RecommendRequest,
)
from accel_bench_advise.recommendation.view import family_report, models_report, recommend_report

MAXIMUM_BYTES = 64 * 2**20
"""Maximum bytes of a request, most of which are sample lengths."""

MOST_SIMULATORS = 8
"""Maximum number of concurrent simulating processes."""

SIMULATOR_BYTES = 3 * 2**29
"""Free bytes of memory required for each simulating process: 1.5 GiB."""

LEAST_BYTES = 2
"""Bytes per weight at 16 bits, the smallest dtype that is tried without a plugin."""

ALL_MODELS = "all"
"""Value of --model that selects every model of the catalog."""

NOTHING = 1
"""Exit code if nothing can be recommended."""


OF_ONE_MODEL = ("model", "budget_usd", "deadline_hours", "lengths", "scenario", "json")
"""Options that only a request for one model may have."""

OF_STORED = (
    *("budget_usd", "deadline_hours", "tokens", "lengths", "where", "at_most", "no_estimates"),
)
"""Options that only requests for stored runs or for a job may have."""


def run_recommend(options: RecommendOptions) -> int:
    """Print the recommendation for the command's options; return the exit code.

    Raises AccelBenchError for a request that cannot be read or answered.
    """
    if options.family is not None:
        return _recommend_family(options, options.family)
    alone = options.model is None and options.scenario is None and options.json is None
    if options.gpu is not None and (alone or options.model == ALL_MODELS):
        return _list_models(options, options.gpu)
    request = read_request(options)
    check_request(request)
    print_aside(f"reading stored runs of {request.model}, and estimating the rest ...")
    with ExitStack() as stack:
        store = _open(options.results, request, stack)
        _check_model(request, store)
        stored, estimator = stored_runs(store, request), None
        if not options.no_estimates and request.mode == "train":
            estimator = _estimator(request, store, options.trust_remote_code, stack)
        document = Recommender(request, stored, read_prices(), estimator).answer()
    print_report(recommend_report(document), options.output)
    return NOTHING if document.offer is None else 0


def _recommend_family(options: RecommendOptions, family: str) -> int:
    """Print recommendations for the models of a family; return the exit code."""
    _refuse(
        options,
        OF_ONE_MODEL,
        "--family answers for all its models from stored runs; leave {} out, or name one model "
        "(--model NAME)",
    )
    modes: list[Mode] = [mode for mode in WORK if options.mode in (None, mode)]
    if not modes:
        raise ScenarioError(f"--mode {options.mode}: it is train or inference")
    request = read_request(replace(options, model=family, mode=None))
    with ExitStack() as stack:
        store = _open(options.results, request, stack)
        known = model_ids(store) if store else set()
        document = recommend_family(request, modes, known, partial(stored_runs, store))
    print_report(family_report(document), options.output)
    return 0 if any(row.recommended for row in document.rows) else NOTHING


def _list_models(options: RecommendOptions, gpu: str) -> int:
    """Print the models of the catalog that fit a device; return the exit code."""
    _refuse(options, OF_STORED, "{}: name the model too (--model NAME)")
    device, work = named_hardware(gpu), options.scenario or "quickstart"
    asked = RecommendRequest(model=_model_of(work), scenario=work)
    # What another card's figures are needs no simulation of its own.
    names = [name for name, card in list_cards().items() if not card.same_as]
    with ExitStack() as stack:
        estimators = [
            _estimator(asked, None, options.trust_remote_code, stack)
            for _ in range(simulators_at_once(len(names), available_cores(), available_memory()))
        ]
        models = fitting_models(names, device, estimators)
    document = FittingModels(gpu=device.name, scenario=work, models=models)
    print_report(models_report(document), options.output)
    return 0 if any(model.fit == "holds" for model in models) else NOTHING


def _refuse(options: RecommendOptions, names: Sequence[str], message: str) -> None:
    """Raise ScenarioError if any of the named options is given; `{}` in the message names them."""
    flags = {"budget_usd": "budget", "deadline_hours": "deadline", "at_most": "metric-below"}
    given = [flags.get(name, name.replace("_", "-")) for name in names if getattr(options, name)]
    if given:
        raise ScenarioError(message.format(", ".join(f"--{flag}" for flag in given)))


def simulators_at_once(models: int, cores: int, free_bytes: int) -> int:
    """Return the number of concurrent processes for simulating `models` models.

    Cores, free memory and a maximum limit it; it is at least 1.
    """
    return max(1, min(models, cores, free_bytes // SIMULATOR_BYTES, MOST_SIMULATORS))


def read_request(options: RecommendOptions) -> RecommendRequest:
    """Return the request that the options and their JSON file define.

    Raises ScenarioError if a value is invalid or given twice, or if no model is named.
    """
    given: dict[str, Any] = {
        key: value
        for key, value in vars(options).items()
        if key in RecommendRequest.model_fields and value not in (None, [])
    }
    for key, value in given.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ScenarioError(f"--{key.partition('_')[0]} takes a finite number")
    if options.lengths:
        given["lengths"] = read_lengths(options.lengths)
    if options.at_most:
        given["at_most"] = dict(map(_limit, options.at_most))
    where = "the command line"
    if options.json is not None:
        where = "stdin" if str(options.json) == "-" else str(options.json)
        text = (
            sys.stdin.read(MAXIMUM_BYTES)
            if where == "stdin"
            else read_text(options.json, MAXIMUM_BYTES, ScenarioError, "")
        )
        document = load_json(text, where)
        if twice := sorted(given.keys() & document.data.keys()):
            raise ScenarioError(f"{where}: the command line gives {', '.join(twice)} too")
        given = {**document.data, **given}
    if "model" not in given and isinstance(given.get("scenario"), str):
        given["model"] = _model_of(given["scenario"])
    if "model" not in given:
        raise ScenarioError(
            "name the model: --model NAME (`accel-bench catalog models`), or a --scenario that has "
            "it; --gpu GPU alone, or with --model all, lists what fits there"
        )
    return validate(RecommendRequest, given, lambda _: where, ScenarioError)


def _limit(text: str) -> tuple[str, float]:
    """Return name and number of a limit, `METRIC=VALUE`; raise ScenarioError for other text.

    A number of bytes may have a unit: `peak_memory_bytes=16GiB`.
    """
    name, _, value = (part.strip() for part in text.partition("="))
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if name.endswith("_bytes") and not math.isfinite(number):
        with suppress(ValidationError):
            number = float(TypeAdapter(ByteSize).validate_python(value))
    if not name or not math.isfinite(number):
        raise ScenarioError(
            f"--metric-below {text}: write METRIC=VALUE, such as request_latency_p99=500 (in ms) "
            "or peak_memory_bytes=16GiB"
        )
    return name, number


def _check_model(request: RecommendRequest, store: Store | None) -> None:
    """Raise ScenarioError for an unknown model that has no stored runs.

    The scenario's own model is not checked here, since loading it reports its errors.
    """
    problem = next(model_problems(ModelUse(id=request.model)), "")
    known = sorted(model_ids(store)) if problem and store else []
    if not problem or request.model in known or _model_of(request.scenario) == request.model:
        return
    there = f"; runs are stored of {join_names(known, most=10)}" if known else ""
    raise ScenarioError(f"--model: {problem}{there}")


def _open(place: str, request: RecommendRequest, stack: ExitStack) -> Store | None:
    """Open the results store in the folder `place`, and let `stack` close it.

    None if there is no store. Raises StoreError if it cannot be opened, or if it is missing and the
    request has conditions on runs.
    """
    try:
        return stack.enter_context(open_results(place))
    except NoResultsError:
        if request.where:
            raise
        return None


def stored_runs(store: Store | None, request: RecommendRequest) -> Stored:
    """Return the stored runs that a request selects; none without a store."""
    if store is None:
        return Stored()
    conditions = [condition_of(store, text) for text in request.where]
    of_model = store.results(RUNS.c.model_id == request.model, *conditions)
    results = [result for result in of_model if result.experiment.scenario.mode == request.mode]
    return Stored(results, {session.id: session for session in store.sessions()}, store)


def _estimator(
    request: RecommendRequest, store: Store | None, trust_remote_code: bool, stack: ExitStack
) -> Estimator:
    """Return an estimator for the scenario of a request; `stack` ends its simulating process."""
    draft, lengths = single_draft(request.scenario, "recommend"), lengths_of(request)
    changed: dict[str, Any] = {}
    if draft.get("model.id") != request.model:
        changed["model.id"] = request.model
    if lengths is not None:
        changed[LENGTH] = lengths.sequence_length
    return Estimator(
        stack.enter_context(closing(Simulator(trust_remote_code))),
        draft,
        PlanRequest(overrides=tuple(changed.items()), trust_remote_code=trust_remote_code),
        read_machine(),
        recent_results(store),
        read_prices(),
        request.tokens or lengths,
    )


def _model_of(scenario: str) -> str:
    """Return the id of the model that a scenario uses.

    Raises ScenarioError for an invalid scenario.
    """
    draft = single_draft(scenario, "recommend")
    file = resolve_request(draft, PlanRequest(build_environments=False))
    return file.scenario.model.id


def fitting_models(
    names: Sequence[str], device: NamedHardware, estimators: Sequence[Estimator]
) -> tuple[FittingModel, ...]:
    """Return whether each catalog model of `names` fits a device, and with which changes.

    Models that fit come first, the largest first, then models that do not fit. The estimators work
    concurrently, each on one model at a time.
    """
    # The largest take longest: they begin first.
    cards = sorted(
        ((name, read_card(name)) for name in names), key=lambda pair: -pair[1].parameters
    )

    def share(place: int) -> list[FittingModel]:
        mine = replace(estimators[place], chosen=device)
        return [_fitting(name, card, mine) for name, card in cards[place :: len(estimators)]]

    with ThreadPoolExecutor(len(estimators)) as pool:
        models = list(chain(*pool.map(share, range(len(estimators)))))
    return tuple(
        sorted(models, key=lambda model: (model.fit != "holds", -model.parameters, model.model))
    )


def _fitting(name: str, card: ModelCard, estimator: Estimator) -> FittingModel:
    blank = FittingModel(model=name, parameters=card.parameters, fit=None)
    weights = card.parameters * LEAST_BYTES
    if weights > (estimator.target.memory_bytes or 0):
        why = f"its weights alone take {size(weights)} in 16 bits"
        return blank.model_copy(update={"fit": "does not hold", "why": why})
    overrides = (*estimator.request.overrides, ("model.id", name))
    request = replace(estimator.request, overrides=overrides)
    try:
        baseline = replace(estimator, request=request).baseline()
    except AccelBenchError as error:
        return blank.model_copy(update={"why": str(error)})
    estimate = baseline.estimate
    return blank.model_copy(
        update={
            "fit": estimate.memory.fit if estimate.memory else None,
            "settings": baseline.settings,
            "needed_bytes": estimate.memory.needed_bytes if estimate.memory else None,
            "tokens_per_second": estimate.speed.tokens_per_second if estimate.speed else None,
            "usd_per_million_tokens": estimate.cost.usd_per_million_tokens
            if estimate.cost
            else None,
            "why": estimate.problem
            or ("" if estimate.memory and estimate.memory.fit == "holds" else estimate.answer),
        }
    )
