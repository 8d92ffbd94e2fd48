"""Which losses of a winner and the baseline are compared."""

from __future__ import annotations

from analysis_factory import TOKENS, make_experiment, make_rank, make_result

from accel_bench.analysis.searches.tuning_schema import Objective
from accel_bench.result import Result
from accel_bench.runner.tune_check import paired_losses
from accel_bench.runner.tune_plans import TUNED

OBJECTIVE = Objective(goal="loss", unit="tokens", amount=2 * TOKENS)


def doubled(run: Result) -> Result:
    """The same run, counting more real tokens than it processed."""
    window = run.ranks[0].window
    assert window is not None
    samples = tuple(one.model_copy(update={"real_tokens": 2 * TOKENS}) for one in window.samples)
    rank = run.ranks[0].model_copy(
        update={"window": window.model_copy(update={"samples": samples})}
    )
    return run.model_copy(update={"ranks": (rank,)})


def test_a_run_that_its_self_audit_disowns_has_no_loss() -> None:
    base, winner = (
        make_result(
            make_experiment(name), ranks=[make_rank(step_seconds=[0.1] * 2, losses=[loss] * 3)]
        )
        for name, loss in (("lora", 3.0), (TUNED, 2.0))
    )
    assert paired_losses([base, winner], OBJECTIVE) == [(3.0, 2.0)]
    assert paired_losses([base, doubled(winner)], OBJECTIVE) == []
