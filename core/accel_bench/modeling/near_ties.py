"""Near ties: positions of an answer at which rounding alone may choose another token."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from accel_bench.machine.clock import monotonic
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench.modeling.contract import text_config
from accel_bench.run_context import Run

ROUNDINGS = 8.0
"""Number of roundings that a near tie's margin allows for. In llamas with random weights, of 1 to
32 blocks in bfloat16 and float16, tokens up to 4.5 roundings apart have changed places."""

MOST_REQUESTS = 256
"""Largest number of requests whose near ties are searched."""

SHARE_OF_TIME = 0.1
"""Largest fraction of `measure.timeout_seconds` for the search."""

RESERVE = 0.05
"""Fraction of `measure.timeout_seconds` that is left for storing the results."""

MOST_POSITIONS = 64
"""Largest number of positions whose logits are copied to float32 together, to save memory."""

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Configuration keys of mixtures of experts, between which rounding may choose."""


def find_near_ties(
    run: Run, end_pass: Callable[[], object] = lambda: None
) -> list[Sequence[int]] | None:
    """Return a list of the positions (from 0) of near ties for each of the run's first answers.

    Each answer takes a forward pass, after which `end_pass` is called. If memory or time runs out,
    the list is shorter. Returns None if no near tie is allowed (float32 without a request rate), if
    decoding is not greedy, or if the model's margin is unknown.
    """
    asked, model = run.scenario.inference, run.unwrapped_model
    dtype: torch.dtype = getattr(torch, run.scenario.compute_dtype)
    exact = dtype == torch.float32 and asked.rate is None
    margin = near_tie_margin(model.config, dtype)
    if exact or asked.decoding != "greedy" or margin is None:
        return None
    pairs = list(zip(run.prompts, run.answers, strict=True))[:MOST_REQUESTS]
    begun = monotonic()
    until, longest = begun + _seconds_for_them(run), 0.0
    ties: list[Sequence[int]] = []
    ended = ""
    with torch.no_grad(), run.autocast(), _uncompiled():
        try:
            for prompt, answer in pairs:
                if begun + longest >= until:
                    ended = "no more time for them is left"
                    break
                ties.append(_near_ties(model, run.device, prompt, answer, margin))
                end_pass()
                ended_at = monotonic()
                begun, longest = ended_at, max(longest, ended_at - begun)
        except Exception as error:
            if out_of_memory(error) is None:
                raise
            ended = str(error)
    if ended:
        run.logger.warning(
            "near ties are known of %d of %d requests: %s", len(ties), len(pairs), ended
        )
    return ties


def _seconds_for_them(run: Run) -> float:
    limit = run.scenario.measure.timeout_seconds
    return min(SHARE_OF_TIME * limit, (1 - RESERVE) * limit - run.trace.age())


def near_tie_margin(config: Any, dtype: torch.dtype) -> float | None:
    """Return the largest difference of two logits, in standard deviations of all logits of their
    position, at which rounding may change their order; None if unknown.

    Each decoder block rounds what it adds to the hidden state, so that errors of independent
    roundings grow with the square root of the number of blocks.
    """
    text = text_config(config)
    blocks = getattr(text, "num_hidden_layers", None)
    if not blocks or any(getattr(text, name, None) for name in EXPERTS):
        return None
    return ROUNDINGS * torch.finfo(dtype).eps * math.sqrt(blocks)


def _near_ties(
    model: Any, device: Any, prompt: torch.Tensor, answer: Sequence[int], margin: float
) -> list[int]:
    """Return the positions of an answer at which the two likeliest tokens are within the margin."""
    kept = len(answer)
    ids = torch.cat([prompt.cpu(), torch.tensor(answer[:-1], dtype=prompt.dtype)])[None]
    last = "logits_to_keep" in inspect.signature(model.forward).parameters
    more = {"logits_to_keep": kept} if last else {}
    output = model(input_ids=ids.to(str(device)), use_cache=False, **more)
    near = [_are_near(logits, margin) for logits in output.logits[0, -kept:].split(MOST_POSITIONS)]
    positions: list[int] = torch.cat(near).nonzero()[:, 0].tolist()
    return positions


def _are_near(logits: torch.Tensor, margin: float) -> torch.Tensor:
    logits = logits.float()
    best = logits.topk(2).values
    return best[:, 0] - best[:, 1] <= margin * logits.std(dim=-1)


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which compiled code runs eagerly: new lengths would recompile it."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
