"""Difference between the steps of two stacks: sums by kind and module, and certainty."""

from __future__ import annotations

from dataclasses import replace

import pytest
from accel_bench_profile.figures.inflation import ProfiledRun
from accel_bench_profile.figures.modules import OUTSIDE, ROOT, ModuleTime, ModuleTimes, StepKind
from accel_bench_profile.figures.waterfall import (
    ProfiledStack,
    module_group,
    profile_waterfall,
)
from accel_bench_profile.figures.waterfall_schema import ProfileWaterfall, WaterfallReport
from accel_bench_profile.waterfall_view import adding_up, answer, waterfall_view

from accel_bench.report.formats import render_report

PARTS: tuple[tuple[str, StepKind, float], ...] = (
    ("model.layers.*.mlp.up_proj", "matmul", 0.020),
    ("model.layers.*.mlp.act_fn", "memory-bound", 0.004),
    ("model.layers.*.self_attn", "attention", 0.010),
    ("model.norm", "norm", 0.002),
    (ROOT, "loss", 0.006),
    (OUTSIDE, "optimizer", 0.005),
    (OUTSIDE, "idle", 0.003),
)
"""Seconds by part of a step of 50 ms."""


def times(scale: float = 1.0, compiled: tuple[str, ...] = (), **more: float) -> ModuleTimes:
    """Return a profiled step, slower by `scale`; `more` adds seconds by suffix of a module."""
    parts = tuple(
        ModuleTime(
            module=module,
            kind=kind,
            direction="forward",
            seconds=scale * (seconds + more.get(module.rpartition(".")[2], 0.0)),
            calls=1.0,
        )
        for module, kind, seconds in PARTS
    )
    whole = sum(one.seconds for one in parts)
    return ModuleTimes(steps=3, step_seconds=whole, times=parts, compiled=compiled, device=False)


def stack(name: str, *windows: float, scale: float = 1.2, **more: float) -> ProfiledStack:
    """Return a stack with a round for each window, profiled `scale` times as slowly."""
    compiled = ("model.layers.*",) if name == "compiled" else ()
    runs = {
        ("session", number): ProfiledRun(
            seconds=seconds,
            window_step_seconds=seconds,
            ranks=[times(scale, compiled, **more)],
        )
        for number, seconds in enumerate(windows)
    }
    return ProfiledStack(name, runs)


def fall(a: ProfiledStack, b: ProfiledStack) -> ProfileWaterfall:
    """Return the waterfall of two stacks that share a round."""
    found = profile_waterfall(a, b, "tiny", "a step of 1,000 tokens")
    assert found is not None
    return found


PLAIN = stack("plain", 0.050, 0.051, 0.049)

SLOWER = stack("slower", 0.060, 0.061, 0.0592, act_fn=0.010)
"""A stack with 10 ms more in one module."""


@pytest.mark.parametrize(
    ("a", "b"), [(PLAIN, SLOWER), (SLOWER, PLAIN), (PLAIN, PLAIN), (PLAIN, stack("compiled", 0.03))]
)
def test_bars_add_up_to_the_measured_difference(a: ProfiledStack, b: ProfiledStack) -> None:
    found = fall(a, b)
    rest = found.unexplained.change
    for bars in (found.kinds, found.modules):
        assert sum(bar.change for bar in bars) + rest == pytest.approx(found.difference.change)
        assert sum(bar.a for bar in bars) + found.unexplained.a == pytest.approx(found.difference.a)
        assert sum(bar.b for bar in bars) + found.unexplained.b == pytest.approx(found.difference.b)


def test_a_planted_slower_module_is_the_first_that_lost() -> None:
    found = fall(PLAIN, SLOWER)
    assert found.lost[0] == "model.layers.*.mlp"
    first = found.modules[0]
    assert first.module == "model.layers.*.mlp"
    assert first.mostly == "model.layers.*.mlp.act_fn"
    assert next(iter(first.kinds)) == "memory-bound"
    assert first.change == pytest.approx(0.010, rel=0.05)
    assert "lost: model.layers.*.mlp +10" in answer(found)
    assert fall(SLOWER, PLAIN).gained[0] == "model.layers.*.mlp"


def test_the_difference_is_that_of_the_windows_with_its_interval() -> None:
    found = fall(PLAIN, SLOWER)
    assert found.difference.change == pytest.approx(0.01007, abs=1e-5)
    low, high = found.difference.low, found.difference.high
    assert low is not None and high is not None
    assert low < found.difference.change < high
    assert found.inflation.a == pytest.approx(1.2, rel=0.01)


def test_one_round_has_no_interval() -> None:
    found = fall(stack("plain", 0.05), stack("slower", 0.06))
    assert found.difference.low is None
    assert found.rounds == 1


def test_only_rounds_of_both_count() -> None:
    assert fall(PLAIN, stack("slower", 0.06)).rounds == 1
    assert profile_waterfall(PLAIN, stack("none"), "tiny", "a step") is None


def test_what_is_not_explained_is_said() -> None:
    runs = {
        key: ProfiledRun(run.seconds, run.window_step_seconds, [outside(run.ranks[0])])
        for key, run in stack("outside", 0.060, 0.061, 0.0592).runs.items()
    }
    found = fall(PLAIN, ProfiledStack("outside", runs))
    assert found.explained is not None and found.explained < 0.95
    assert "do not explain all of the difference: +" in adding_up(found)
    assert adding_up(fall(PLAIN, SLOWER)).startswith("the parts explain ")


def outside(one: ModuleTimes) -> ModuleTimes:
    """Return a profiled step with 10 ms more outside of modules."""
    more = [
        part.model_copy(update={"seconds": part.seconds + 0.012})
        if (part.module, part.kind) == (OUTSIDE, "idle")
        else part
        for part in one.times
    ]
    return one.model_copy(update={"times": tuple(more)})


def test_without_a_difference_nothing_has_to_be_explained() -> None:
    found = fall(PLAIN, PLAIN)
    assert found.explained is None
    assert not found.gained and not found.lost
    assert adding_up(found).startswith("no difference that has to be explained")


def test_noise_is_named_neither_gained_nor_lost() -> None:
    found = fall(stack("a", 0.050, 0.051, 0.050), stack("b", 0.045, 0.065, 0.046))
    assert not found.gained and not found.lost
    assert "within the noise" in answer(found)


def test_what_one_compiles_as_one_has_one_bar_in_both() -> None:
    found = fall(PLAIN, stack("compiled", 0.03, 0.031, 0.029))
    assert {one.module for one in found.modules} == {
        "model.layers.*", "model.norm", ROOT, OUTSIDE,
    }  # fmt: skip
    assert any("compiles model.layers.* as one" in note for note in found.notes)


def recorded(window: float, *parts: tuple[str, float, float], rounds: int = 3) -> ProfiledStack:
    """Return a stack by the recorded milliseconds of its modules, and their events."""
    times = tuple(
        ModuleTime(module=module, kind="memory-bound", direction="forward",
                   seconds=ms / 1000, calls=1.0, events=events)
        for module, ms, events in parts
    )  # fmt: skip
    whole = sum(one.seconds for one in times)
    steps = ModuleTimes(steps=3, step_seconds=whole, times=times, device=False)
    run = ProfiledRun(seconds=window, window_step_seconds=window, ranks=[steps])
    return ProfiledStack("stack", {("session", number): run for number in range(rounds)})


def change(found: ProfileWaterfall, module: str) -> float:
    """Return the change of a module in seconds."""
    return next(one.change for one in found.modules if one.module == module)


def test_recording_many_small_operations_changes_no_other_module() -> None:
    # `big` takes 50 ms in both, `small` 50 and 10 ms; recording makes the latter 150 and 12 ms.
    found = fall(
        recorded(0.100, ("big", 50.1, 10), ("small", 150.0, 10_000)),
        recorded(0.060, ("big", 50.1, 10), ("small", 12.0, 200)),
    )
    assert found.event_seconds == pytest.approx(10e-6, rel=0.01)
    assert change(found, "small") == pytest.approx(-0.040, rel=0.01)
    assert change(found, "big") == pytest.approx(0.0, abs=0.0005)
    assert (found.gained, found.lost) == (("small",), ())
    assert adding_up(found).startswith("the parts explain ")


def test_what_only_an_unlike_inflation_changes_is_unexplained_and_not_named() -> None:
    # The same, with nothing that says what recording each event costs.
    found = fall(
        recorded(0.100, ("big", 50.0, 0), ("small", 150.0, 0)),
        recorded(0.060, ("big", 50.0, 0), ("small", 12.0, 0)),
    )
    assert change(found, "big") == pytest.approx(0.0, abs=1e-9)
    assert (found.gained, found.lost) == (("small",), ())
    assert found.unexplained.change == pytest.approx(0.0234, abs=0.0001)
    assert "do not explain all of the difference: +23" in adding_up(found)
    assert any("still take 2.00 times and those of" in note for note in found.notes)
    assert sum(one.change for one in found.modules) + found.unexplained.change == pytest.approx(
        found.difference.change
    )


def test_a_module_is_not_named_for_an_inflation_that_differs_a_little() -> None:
    found = fall(
        recorded(0.100, ("big", 50.0, 0), ("small", 58.0, 0)),
        recorded(0.092, ("big", 50.0, 0), ("small", 42.0, 0)),
    )
    assert not found.left_inflation.is_unlike
    assert change(found, "big") > 0.001
    assert (found.gained, found.lost) == (("small",), ())


def test_unlike_inflations_are_noted() -> None:
    found = fall(PLAIN, stack("slower", 0.06, 0.061, 0.0592, scale=2.4))
    assert any("as long as measured ones: what parts change by" in note for note in found.notes)
    assert not fall(PLAIN, SLOWER).notes


def test_steps_that_recording_seems_to_make_shorter_are_blamed_on_other_work() -> None:
    found = fall(PLAIN, stack("disturbed", 0.070, 0.069, 0.0692))
    note = "disturbed took 0.86 times as long as measured ones: other work on the machine slowed"
    assert any(note in one for one in found.notes)


def test_other_work_within_recorded_steps_is_noted() -> None:
    runs = {key: replace(run, preempted_seconds=0.004) for key, run in SLOWER.runs.items()}
    found = fall(PLAIN, ProfiledStack("slower", runs))
    assert found.notes == (
        "other work on the machine took 4.00 ms of each recorded step of slower",
    )


def test_a_difference_within_the_noise_is_not_called_none() -> None:
    found = fall(stack("a", 0.050, 0.054, 0.050), stack("b", 0.060, 0.054, 0.060))
    assert adding_up(found).startswith("the difference is not sure: take more rounds")


def test_with_one_round_nothing_is_called_sure() -> None:
    found = fall(stack("plain", 0.05), stack("slower", 0.06, act_fn=0.010))
    assert "nothing is sure with one round; lost: model.layers.*.mlp" in answer(found)
    assert adding_up(found).startswith("one round has no interval")


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("model.layers.*.mlp.experts.*.w1", "model.layers.*.mlp"),
        ("model.layers.*", "model.layers.*"),
        ("model.embed_tokens", "model.embed_tokens"),
        ("transformer.visual.trunk.stem.conv", "transformer.visual.trunk"),
        (OUTSIDE, OUTSIDE),
    ],
)
def test_modules_are_shown_by_parts_of_a_layer(path: str, group: str) -> None:
    assert module_group(path, ()) == group


def test_a_whole_compiled_model_takes_all_its_modules() -> None:
    assert module_group("model.layers.*.mlp", (ROOT,)) == ROOT
    assert module_group(OUTSIDE, (ROOT,)) == OUTSIDE


@pytest.mark.parametrize("form", ["table", "json", "csv", "markdown"])
def test_every_format_has_the_bars_and_the_rest(form: str) -> None:
    report = WaterfallReport(waterfalls=(fall(PLAIN, SLOWER),), missing=("x: failed",))
    text = render_report(waterfall_view(report), form)
    assert "model.layers.*.mlp" in text.replace("\\", "")
    assert "unexplained" in text


def test_of_many_modules_those_that_change_most_are_shown_and_those_that_are_named() -> None:
    found = fall(PLAIN, SLOWER)
    shown = [bar.module for bar in found.modules if bar.module in {*found.gained, *found.lost}]
    (section,) = waterfall_view(WaterfallReport(waterfalls=(found,)), top=1).sections
    names = [name for name, _ in section.tables[1].rows]
    left = len(found.modules) - len(shown)
    assert shown and left > 1
    assert names == [*shown, f"{left} modules that hardly change", "unexplained", "measured"]
