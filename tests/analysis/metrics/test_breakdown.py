"""Where the time went: stages that come once, and phases of a step."""

from __future__ import annotations

from typing import Any

from analysis_factory import make_rank, make_result

from accel_bench.analysis.metrics.breakdown import phases, start_up
from accel_bench.effective import Compilation, EffectiveConfiguration
from accel_bench.machine.process_memory import Stage
from accel_bench.modeling.compilation import read_compilation
from accel_bench.result import PhaseSplit, Result


def with_stages(seconds: dict[str, float], **changes: Any) -> Result:
    """A run whose only rank passed stages at those seconds since its start."""
    stages = tuple(Stage(name=name, seconds=at) for name, at in seconds.items())
    rank = make_rank().model_copy(update={"stages": stages, **changes})
    return make_result(ranks=(rank,))


def split(step_seconds: float, **seconds: float) -> PhaseSplit:
    return PhaseSplit(steps=5, step_seconds=step_seconds, seconds=seconds)


def test_a_stage_lasts_from_the_end_of_the_one_before() -> None:
    found = start_up([with_stages({"imports": 2.0, "load_data": 2.5, "load_model": 6.0})])
    assert found is not None
    assert (found.imports_seconds, found.load_data_seconds) == (2.0, 0.5)
    assert found.load_model_seconds == 3.5
    assert found.build_seconds is None


def test_the_first_step_and_the_compiler_have_figures_of_their_own() -> None:
    compiled = Compilation(**{**read_compilation(), "compile_seconds": 1.5})
    found = start_up([with_stages({}, effective=EffectiveConfiguration(compilation=compiled))])
    assert found is not None
    assert (found.first_step_seconds, found.compile_seconds) == (0.5, 1.5)


def test_runs_are_brought_together_by_their_median() -> None:
    found = start_up([with_stages({"imports": seconds}) for seconds in (1.0, 2.0, 9.0)])
    assert found is not None
    assert found.imports_seconds == 2.0


def test_of_ranks_the_slowest_counts() -> None:
    ranks = [
        make_rank(rank).model_copy(
            update={
                "stages": (Stage(name="imports", seconds=1.0 + rank),),
                "phases": split(0.1 * (rank + 1), forward=0.05 * (rank + 1)),
            }
        )
        for rank in (0, 1)
    ]
    run = make_result(ranks=tuple(ranks))
    once, step = start_up([run]), phases([run])
    assert once is not None and once.imports_seconds == 2.0
    assert step is not None and (step.step_seconds, step.forward) == (0.2, 0.1)


def test_an_engine_that_marks_nothing_has_no_phases() -> None:
    assert phases([with_stages({})]) is None


def test_a_phase_that_was_not_marked_is_null_and_not_zero() -> None:
    found = phases([with_stages({}, phases=split(1.0, forward=0.4))])
    assert found is not None
    assert (found.forward, found.backward) == (0.4, None)
