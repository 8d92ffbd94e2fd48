"""How far may two trainings be apart that draw dropout or noise in another order?"""

from __future__ import annotations

from accel_bench.effective import DROPOUT
from accel_bench.result import Result


def excuse_of_draws(before: Result, after: Result) -> str:
    """Return the reason why random draws may explain a difference; empty if either run draws
    nothing.

    All draw from one seed: a stack that draws in the baseline's order is at most 2e-5 apart, with
    dropout as without. Other kernels, batches and paddings draw in another order, which no reading
    outside of the steps shows. In a small llama that moved updates of the same size 0.2 to 0.27
    apart under LoRA with dropout of 0.1, 0.33 to 0.46 with 0.3, 0.11 to 0.29 with dropout of
    attention, and 0.35 to 0.55 in earlier trials; Gumbel noise of a small wav2vec 2.0 0.69 apart.
    Losses moved by 0.0015 under LoRA with dropout of 0.1, and by 0.014 with Gumbel noise. Cheats
    lie among them: no rotary embedding is 0.2 apart, no momentum 0.27, no causal mask 0.59. So the
    size of an update and a loss that is far off alone show cheats here.
    """
    drawn = [run.ranks[0].effective.drawn for run in (before, after) if run.ranks]
    if len(drawn) < 2 or not all(drawn):
        return ""
    adapter = after.experiment.scenario.adapter.options
    where = "--set adapter.dropout=0" if adapter.get("dropout") else "model.overrides"
    without = f"; without it ({where}) it can be told" if drawn[-1] == DROPOUT else ""
    return f"{drawn[-1]} drawn in another order does that{without}"
