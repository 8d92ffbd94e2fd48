"""Program that counts a card's model: `python -m accel_bench_catalog.count_impl < CARD.json`."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING

from accel_bench.catalog.models import ModelCard
from accel_bench.machine.info import Device
from accel_bench.modeling.loading import count_parameters, learned_positions
from accel_bench.modeling.random_weights import MODEL_CLASS
from accel_bench.run_context import Run
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario, Stack
from accel_bench.worker.flops.trace import read_workload
from accel_bench_catalog.count import ModelCount


def count_model(card: ModelCard) -> ModelCount:
    """Return the FLOPs of training all weights of a card's model, built on the meta device.

    The workload is null, with the reason in `problem`, for a model type unknown to transformers, a
    model that is no decoder, a module unknown to the FLOP counter, or a number of parameters other
    than the card's.
    """
    if card.model_type not in CONFIG_MAPPING:
        return ModelCount(problem=f"transformers has no model type {card.model_type!r}")
    config = CONFIG_MAPPING[card.model_type](**card.config)
    with torch.device("meta"):
        model = getattr(transformers, card.model_class).from_config(config).train()
    parameters = count_parameters(model, trainable=True)
    if parameters != card.parameters:
        problem = f"the model has {parameters:,} parameters, its card says {card.parameters:,}"
        return ModelCount(problem=problem)
    if card.model_class != MODEL_CLASS:
        problem = (
            "it is no decoder: its products are observed in a run, for the shapes it trains on"
        )
        return ModelCount(problem=problem)
    log = io.StringIO()
    workload = read_workload(_run_of(model, log))
    return ModelCount(
        workload=workload, positions=learned_positions(config), problem=log.getvalue().strip()
    )


def _run_of(model: Any, log: io.StringIO) -> Run:
    """Return a run of the model on the meta device, which trains all weights and logs to `log`."""
    experiment = Experiment(id="", scenario=Scenario(), stack=Stack(name="baseline"), identity={})
    logger = logging.Logger("flops")
    logger.addHandler(logging.StreamHandler(log))
    run = Run(experiment, Device("meta"), Path(), Path(), logger=logger)
    run.model = run.unwrapped_model = model
    return run


def main() -> None:
    """Read a model card as JSON from standard input, and print its `ModelCount` as JSON.

    An error ends the process with one line on standard error.
    """
    try:
        print(count_model(ModelCard.model_validate_json(sys.stdin.read())).model_dump_json())
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main()
