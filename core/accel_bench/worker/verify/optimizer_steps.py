"""Counting of optimizer steps by the changes of weights, and reading of learning rates in use."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median_low
from typing import Any, NamedTuple

import torch

from accel_bench.analysis.checks.trained import RATE_TOLERANCE
from accel_bench.effective import OptimizerProgress
from accel_bench.modeling.tensors import elements_by_dtype, has_values, plain_tensors
from accel_bench.scenario.models import Scenario

SAMPLED_TENSORS = 8
SAMPLED_ELEMENTS = 64
"""Number of elements compared after each warm-up step, in case version counters stand still."""


NO_UPDATE_RULE = frozenset(
    "foreach fused capturable differentiable "
    "params lr initial_lr max_lr min_lr weight_decay".split()
)
"""Keys of an optimizer's groups that are no hyperparameters, or are read separately."""

MORE_STEPS = 1.5
"""Largest ratio of steps counted on weights to engine steps, as some optimizers write twice."""


LEAST_NODES = 0.75
"""Least ratio of autograd nodes in a measured step to nodes in the smallest other step."""


class Reading(NamedTuple):
    """Values read between two steps, by which optimizer steps are counted."""

    steps: int
    """Number of steps that the engine has ended."""

    counted: int
    """Number of steps by the optimizer's own counter; 0 without a counter."""

    versions: list[int]
    values: list[torch.Tensor]

    nodes: int = 0
    """Number of autograd nodes made so far in this thread."""


class OptimizerStepCounter:
    """Counter of optimizer steps by torch's version counters of the trained tensors.

    Every in-place operation increments a tensor's version counter. The least increment in a warm-up
    step counts as one step, so that other writes never lead to too small a count. A single warm-up
    step does not show it, since an engine may write weights before its first step. If a tensor
    changes while its counter stays the same, as under a CUDA graph, all counters are unusable.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self._tensors = [p for p in parameters if p.requires_grad and has_values(p)]
        self._sampled = self._tensors[:: max(1, len(self._tensors) // SAMPLED_TENSORS)]
        self._start = self._last = self._versions()
        self._values = self._elements()
        self._least = [0] * len(self._tensors)
        self._blind = False
        self._always_changed = True
        self._warmup_steps = 0
        self._made = nodes_made()
        self.nodes: list[int] = []
        """Number of autograd nodes of each warm-up step."""

    def see_step(self) -> None:
        """Record the weights' version counters, and which weights a warm-up step changed."""
        self._warmup_steps += 1
        made = nodes_made()
        self.nodes.append(made - self._made)
        self._made = made
        now, values = self._versions(), self._elements()
        moved = [after - before for before, after in zip(self._last, now, strict=True)]
        changed = not all(map(torch.equal, self._values, values))
        self._blind |= changed and not any(moved)
        self._always_changed &= changed
        self._least = [
            min(filter(None, pair), default=0) for pair in zip(self._least, moved, strict=True)
        ]
        self._last, self._values = now, values

    def steps(self) -> int | None:
        """Return the number of optimizer steps so far, or None if it is unknown."""
        return max(self._steps_of(self._start, self._versions()), default=None)

    def read(self, steps: int, optimizers: Iterable[Any]) -> Reading:
        """Return a reading of weights and counters; `steps` engine steps have ended."""
        counted = max(filter(None, map(_own_counter, optimizers)), default=0)
        return Reading(steps, counted, self._versions(), self._elements(), nodes_made())

    def steps_between(self, start: Reading, end: Reading) -> int | None:
        """Return the number of optimizer steps between two readings, the largest of all tensors.

        Returns None if neither counters nor values are usable. Values are usable if every warm-up
        step has changed them.
        """
        seen = self._steps_of(start.versions, end.versions)
        if seen:
            return max(seen)
        still = all(map(torch.equal, start.values, end.values))
        return 0 if still and self._always_changed and self._warmup_steps else None

    def most_show(self, start: Reading, end: Reading) -> int:
        """Return the median over tensors of their numbers of updates between two readings, or 0."""
        return median_low(self._steps_of(start.versions, end.versions) or [0])

    def _steps_of(self, start: Sequence[int], end: Sequence[int]) -> list[int]:
        """Return the number of steps that each tensor's version counter shows, or an empty list."""
        if self._blind or self._warmup_steps < 2:
            return []
        ends = zip(start, end, self._least, strict=True)
        return [(last - first) // least for first, last, least in ends if least]

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    def _elements(self) -> list[torch.Tensor]:
        """Return copies of a few elements of a few tensors, on this rank."""
        plain = [next(plain_tensors(tensor.detach())) for tensor in self._sampled]
        rows = [tensor[(-1,) * (tensor.dim() - 1)] for tensor in plain if tensor.numel()]
        return [row.reshape(-1)[:SAMPLED_ELEMENTS].clone() for row in rows]


def read_progress(
    optimizers: Iterable[Any], steps: int, counter: OptimizerStepCounter
) -> OptimizerProgress:
    """Return step counts, rates and hyperparameters of optimizers after `steps` engine steps."""
    optimizers = list(optimizers)
    counts = [count for count in map(_own_counter, optimizers) if count is not None]
    return OptimizerProgress(
        steps=steps,
        counted_steps=max(counts, default=None),
        observed_steps=counter.steps(),
        learning_rates=_rates(optimizers, "lr"),
        weight_decays=_rates(optimizers, "weight_decay"),
        hyperparameters={
            key: values
            for key in dict.fromkeys(key for group in _groups(optimizers) for key in group)
            if key not in NO_UPDATE_RULE and (values := _rates(optimizers, key))
        },
        state_dtypes=elements_by_dtype(_state_tensors(optimizers)),
    )


def progress_reasons(
    scenario: Scenario, progress: OptimizerProgress
) -> tuple[list[str], list[str]]:
    """Return two lists of texts on steps, learning rates and weight decays other than the
    scenario's: why the run is `degraded`, and why it is `invalid`. An optimizer with its own
    learning rate is `degraded`, as readers of the row must know that it did not train with the
    scenario's."""
    degraded: list[str] = []
    witnesses = (progress.counted_steps, progress.observed_steps)
    counted = max((steps for steps in witnesses if steps is not None), default=None)
    invalid = [*_steps_left_out(scenario, counted, progress.steps, progress.steps)]
    asked, rates = scenario.train.learning_rate, progress.learning_rates
    total = sum(rates.values())
    other = [
        rate if count == total else f"{rate} for {count} of {total} tensors"
        for rate, count in rates.items()
        if not _is(rate, asked)
    ]
    if other:
        sentence = f"learning rate {', '.join(other)} in force, the scenario says {asked:g}"
        (invalid if set(rates) == {"0"} else degraded).append(sentence)
    decay = scenario.optimizer.options.get("weight_decay")
    decays = progress.weight_decays
    if isinstance(decay, (int, float)) and decays and not any(_is(rate, decay) for rate in decays):
        degraded.append(f"weight decay {', '.join(decays)} in force, the scenario says {decay:g}")
    return degraded, invalid


def window_reasons(
    scenario: Scenario, counter: OptimizerStepCounter, readings: Sequence[Reading]
) -> Iterator[str]:
    """Yield reasons why the run is `invalid`: too few optimizer steps in the final window, or too
    many before it. `readings` are from the first step's end, the warm-up's end, and the opening and
    the end of each window; the last one is from the final window's end."""
    first, warm, *_, opened, last = readings
    asked, own = last.steps - opened.steps, last.counted - opened.counted
    seen = counter.steps_between(opened, last)
    # A counter that has counted each step of the warm-up does so in the window.
    tells = warm.counted - first.counted >= warm.steps - first.steps > 0
    counted = own if tells or seen is None else max(own, seen)
    if tells or seen is not None:
        where = " of the window" if counted < asked else ""
        yield from _steps_left_out(scenario, counted, asked, last.steps, where)
    rate = max(1.0, own / asked)
    for start, end in pairwise(readings[:-1]):
        asked = end.steps - start.steps
        more = max((end.counted - start.counted) / rate, counter.most_show(start, end))
        if more > MORE_STEPS * asked + 1:
            when = f"in {asked} of the engine" if asked else "between two of the engine"
            yield f"the optimizer took {more:g} steps {when} before the window opened"


def node_reasons(
    warmup: Sequence[int], opened: Reading, ended: Reading, later: Sequence[int]
) -> Iterator[str]:
    """Yield reasons for `invalid`: too few forward passes in the measured window, or after it.

    The steps of the window must make as many autograd nodes as the smallest other step: `later` has
    the nodes of steps after the window, and `warmup` those of warm-up steps, of which the first may
    trace for a compiler. A replayed device graph makes no nodes.
    """
    if not later:
        return
    usual = min([*warmup[1:], *later])
    made = (ended.nodes - opened.nodes) / max(1, ended.steps - opened.steps)
    if made < LEAST_NODES * usual:
        yield (
            f"autograd recorded {made:.0f} operations in a step of the window, and {usual} in each "
            "before and after it: forward passes were left out, or computed elsewhere"
        )
    if warmup and warmup[0] and not max(later) and not _replays_graphs():
        yield (
            "autograd recorded no operation in a step after the window: nothing was computed there"
        )


def nodes_made() -> int:
    """Return the number of autograd nodes that this thread's operations have made so far."""
    return int(torch.autograd._get_sequence_nr())


def _replays_graphs() -> bool:
    """Return whether a device graph exists, such as of CUDA, which one call from Python replays."""
    kinds = (torch.cuda.CUDAGraph, getattr(torch.xpu, "XPUGraph", torch.cuda.CUDAGraph))
    return any(issubclass(type(thing), kinds) for thing in gc.get_objects())


def _steps_left_out(
    scenario: Scenario, taken: int | None, asked: int, steps: int, where: str = ""
) -> Iterator[str]:
    """Yield a reason if the optimizer took fewer steps than `asked`; `taken` is None if unknown.

    A gradient scaler rightly skips some of all `steps`, until its scale is small enough.
    """
    if taken is None or taken >= asked:
        return
    scaled = scenario.train.precision == "fp16-autocast"
    if not scaled or taken + scaler_skips(steps) < asked:
        yield f"the optimizer took {taken} of {asked} steps{where}"


def scaler_skips(steps: int) -> int:
    """Return the most steps that gradient scalers can have skipped, judged by their scales."""
    skips = 0.0
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.amp.GradScaler) and thing.is_enabled():
            shrunk = thing._init_scale / thing.get_scale()
            growths = steps // thing.get_growth_interval()
            grown = thing.get_growth_factor() ** growths
            skips += max(0.0, math.log(shrunk * grown) / -math.log(thing.get_backoff_factor()))
    return round(skips)


def _own_counter(optimizer: Any) -> int | None:
    """Return the largest step count in an optimizer's states; None if the states have no count."""
    counts: list[Any] = [state.get("step") for state in _states(optimizer)]
    return max((int(count) for count in counts if _is_number(count)), default=None)


def _states(optimizer: Any) -> list[dict[str, Any]]:
    states = getattr(optimizer, "state", {}).values()
    return [state for state in states if isinstance(state, dict)]


def _is_number(count: Any) -> bool:
    """Return whether a step count is a number; some libraries store other things under its key."""
    tensor = isinstance(count, torch.Tensor) and count.numel() == 1
    return tensor or isinstance(count, (int, float))


def _groups(optimizers: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for optimizer in optimizers:
        yield from getattr(optimizer, "param_groups", ())


def _rates(optimizers: Iterable[Any], key: str) -> dict[str, int]:
    """Return the number of tensors by value of `key`, such as `lr`, in the optimizers' groups."""
    pairs: dict[tuple[str, int], None] = {}
    for group in _groups(optimizers):
        if rate := _number_words(group.get(key)):
            pairs |= {(rate, id(tensor)): None for tensor in group["params"]}
    return dict(Counter(rate for rate, _ in pairs).most_common())


def _number_words(value: Any) -> str:
    """Return a number, or a sequence of numbers and Nones, as text; empty for any other value."""
    if isinstance(value, tuple | list):
        words = ["none" if item is None else _number_words(item) for item in value]
        return ", ".join(words) if all(words) else ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{float(value):.6g}" if _is_number(value) else ""


def _state_tensors(optimizers: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in the optimizers' states, as they are stored, except step counts."""
    states = {id(state): state for optimizer in optimizers for state in _states(optimizer)}
    for value in (value for state in states.values() for value in state.values()):
        if isinstance(value, torch.Tensor):
            yield from (tensor for tensor in plain_tensors(value) if tensor.dim())


def _is(rate: str, asked: float) -> bool:
    return math.isclose(float(rate), asked, rel_tol=RATE_TOLERANCE)
