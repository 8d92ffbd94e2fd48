"""Write the rows of the table as a page of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from accel_bench.analysis.wording import join_names
from benchmarks.support_runs import BASELINE, UNDIVIDED_REASON, Outcome, Row

SUFFIX = "-cpu"
"""End of the names of shipped works."""

TASKS = """# What trains, what is counted, what accelerates

Made by `python -m benchmarks.support`: each workload of `benchmarks/support.yaml` is trained for
eight steps on one CPU device, with named stacks beside its baseline. The models are small, and
nothing here was run on a GPU or says how fast a stack is: it says whether the same was trained.
Rows come from several environments, and not all from one version of the code.

## Workloads

*Loss* is the mean of the first and of the last quarter of eight steps; *gradient* counts the
trained tensors that one reached in the first step (of a LoRA adapter half of them: the other half
is zero until then); *FLOPs* are ours over those of torch's own counter.

| workload | task | model | data | loss | gradient | FLOPs |
| --- | --- | --- | --- | --- | --- | --- |
{baselines}
"""

STACKS = """
## Stacks

`=` equivalent training, or no further apart than its plugin declares (an update up to 30 %, a loss
up to 2 %), `1` equivalent, but nothing is divided on one device, `0` nothing to do,
`~` different by design, `≠` different, `?` not decided, `-` refused, `!` failed; an empty cell was
not run yet. Below are the reasons.

`1` says that a workload trains with the wrapper, and nothing of dividing it: tests do that with
several processes (`plugins/distributed/tests/test_tasks.py`).

| stack | {stacks} |
| --- | {ruler} |
{matrix}

## Reasons

| | workloads | stacks | reason |
| --- | --- | --- | --- |
{reasons}
"""

SIGNS: Mapping[Outcome, str] = {
    "trained": "=",
    "equivalent": "=",
    "nothing to do": "0",
    "different by design": "~",
    "different": "≠",
    "undecided": "?",
    "refused": "-",
    "failed": "!",
}

UNDIVIDED = "1"
"""Sign of what would divide the work, on one device."""

OF_THE_WORK = (
    (re.compile(r"does not support \w+; it supports"), "supports only"),
    (re.compile(r"does not work with ([\w.]+) \S+; it works with"), r"needs \1"),
)
"""Parts of reasons that name what the work has, which its column says."""


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a page of Markdown."""
    trained = [row for row in rows if row.stack == BASELINE]
    others = [row for row in rows if row.stack != BASELINE]
    page = TASKS.format(baselines="\n".join(map(_baseline_line, trained)))
    if not others:
        return page
    return page + STACKS.format(
        stacks=" | ".join(_short(row.scenario) for row in trained),
        ruler=" | ".join("---" for _ in trained),
        matrix="\n".join(_matrix(trained, others)),
        reasons="\n".join(_reasons(trained, others)),
    )


def _baseline_line(row: Row) -> str:
    loss = "-" if row.first_loss is None else f"{row.first_loss:.4g} to {row.last_loss:.4g}"
    gradient = f"{row.tensors_with_gradient} of {row.trained_tensors}"
    flops = f"not counted: {row.reason}" if row.flops_ratio is None else f"{row.flops_ratio:.5f}"
    cells = (_short(row.scenario), row.task, row.model, row.data, loss, gradient, flops)
    return f"| {' | '.join(cells)} |"


def _matrix(trained: Sequence[Row], others: Sequence[Row]) -> Iterator[str]:
    found = {(row.scenario, row.stack): _sign(row) for row in others}
    for stack in sorted({row.stack for row in others}):
        cells = (found.get((row.scenario, stack), " ") for row in trained)
        yield f"| `{stack}` | {' | '.join(cells)} |"


def _sign(row: Row) -> str:
    return UNDIVIDED if row.reason == UNDIVIDED_REASON else SIGNS[row.outcome]


def _reasons(trained: Sequence[Row], others: Sequence[Row]) -> Iterator[str]:
    """Yield each reason once for all stacks that give it for the same works."""
    order = [row.scenario for row in trained]
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in sorted(others, key=lambda row: (row.stack, order.index(row.scenario))):
        if row.reason:
            said = found.setdefault((_sign(row), _general(row)), {})
            said.setdefault(row.stack, []).append(row.scenario)
    for (sign, reason), by_stack in sorted(found.items(), key=lambda item: next(iter(item[1]))):
        together: dict[tuple[str, ...], list[str]] = {}
        for stack, works in by_stack.items():
            together.setdefault(tuple(works), []).append(stack)
        for same, stacks in together.items():
            named = ", ".join(f"`{stack}`" for stack in stacks)
            yield f"| {sign} | {_works(same, order)} | {named} | {reason} |"


def _works(works: Sequence[str], order: Sequence[str]) -> str:
    """Return works as a text; those that are missing where they are fewer."""
    left = [work for work in order if work not in works]
    if not left:
        return "all"
    if len(left) < len(works):
        return f"all but {', '.join(map(_short, left))}"
    return ", ".join(map(_short, works))


def _general(row: Row) -> str:
    """Return a reason without what it says of the one work."""
    reason = row.reason
    if row.declared_by:
        return (
            f"computes with other numbers, as far apart as {join_names(row.declared_by)} declares"
        )
    for pattern, general in OF_THE_WORK:
        reason = pattern.sub(general, reason)
    return reason.replace("|", "\\|")


def _short(work: str) -> str:
    return work.removesuffix(SUFFIX)
