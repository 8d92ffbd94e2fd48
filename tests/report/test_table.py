"""The terminal's table: complete at every width, and no name is taken for markup."""

from __future__ import annotations

from io import StringIO

import pytest
from analysis_factory import (
    STEADY,
    make_experiment,
    make_result,
    make_rounds,
    make_summary,
    scaled,
)
from rich.console import Console

from accel_bench.report.table import print_table, render_table
from accel_bench.result import Status

LORA, FAST, SLOW = (make_experiment(name) for name in ("lora", "fast", "slow"))


def full_summary():
    return make_summary(
        [LORA, FAST, SLOW],
        [
            *make_rounds(LORA, STEADY),
            *make_rounds(FAST, scaled(0.8)),
            *[
                make_result(SLOW, round=i, status=Status.OOM, reasons=["3 GiB asked"])
                for i in range(5)
            ],
        ],
    )


def line_of(text, stack):
    return next(line for line in text.splitlines() if line.startswith(f"{stack} "))


def test_a_row_shows_speed_ratio_steps_memory_loss_and_verdicts():
    line = line_of(render_table([full_summary()]), "fast")
    assert line.split() == (
        "fast 1,250 ±0.34 % 1.250 [1.249 1.251] 80.0/80.0 0.0 2.000 equivalent faster ok".split()
    )


def test_the_baseline_is_marked_and_a_failure_shows_no_number():
    text = render_table([full_summary()])
    assert line_of(text, "lora").split()[-2:] == ["baseline", "ok"]
    assert line_of(text, "slow").split() == ["slow", "-", "-", "-", "-", "-", "-", "oom"]


def test_reasons_and_the_sentence_stand_under_the_table():
    text = render_table([full_summary()])
    assert "slow: 3 GiB asked" in text
    assert "fast is faster than lora" in text
    assert "slow ended as oom." in " ".join(text.split())


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_number_is_cut_on_a_narrow_terminal(width):
    console = Console(file=StringIO(), width=width, color_system=None)
    print_table([full_summary()], console)
    text = console.file.getvalue()
    assert "1.250 [1.249 1.251]" in text
    assert "…" not in text


def test_a_table_with_long_names_fits_into_100_columns():
    noisy = make_experiment("gradient-checkpointing", sweep={})
    results = [*make_rounds(LORA, STEADY), *make_rounds(noisy, [0.1, 0.09, 0.11, 0.105, 0.1])]
    text = render_table([make_summary([LORA, noisy], results)])
    assert "inconclusive" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_name_that_is_too_long_is_broken_behind_a_hyphen():
    noisy = make_experiment("gradient-checkpointing", sweep={})
    results = [*make_rounds(LORA, STEADY), *make_rounds(noisy, [0.1, 0.09, 0.11, 0.105, 0.1])]
    lines = render_table([make_summary([LORA, noisy], results)]).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("gradient-"))
    assert lines[first].split()[0] == "gradient-"
    assert lines[first + 1].strip() == "checkpointing"


def test_swept_keys_are_columns():
    points = [make_experiment("lora", sweep={"train.micro_batch_size": n}) for n in (4, 8)]
    results = [run for point in points for run in make_rounds(point, STEADY)]
    text = render_table([make_summary(points, results)])
    assert "micro batch" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("lora ")][:2] == [
        "4",
        "8",
    ]


def test_swept_keys_with_the_same_last_word_are_written_out():
    point = make_experiment("lora", sweep={"data.seed": 1, "train.seed": 2})
    text = render_table([make_summary([point], make_rounds(point, STEADY))])
    assert "data.seed" in text
    assert "train.seed" in text


def test_markup_in_reasons_and_settings_is_shown_as_it_is():
    odd = make_experiment("odd", settings={"model.id": "[red]x[/red]"})
    summary = make_summary([odd], [], skipped={"odd": ["[link=http://x]y[/link]"]})
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system="standard")
    print_table([summary], console)
    assert "[red]x[/red]" in console.file.getvalue()
    assert "[link=http://x]y[/link]" in console.file.getvalue()


def test_control_characters_in_reasons_do_not_reach_the_terminal():
    summary = make_summary([LORA], [], skipped={"lora": ["a\x1b[2Jb\nlora fake row\r\x07"]})
    text = render_table([summary])
    assert "\x1b" not in text
    assert "a [2Jb lora fake row" in text


def test_a_reason_that_holds_for_many_rows_is_said_once():
    runs = [
        make_result(e, round=i, status=Status.DEGRADED, reasons=["the machine was busy"])
        for e in (LORA, FAST)
        for i in range(5)
    ]
    text = render_table([make_summary([LORA, FAST], runs)])
    assert text.count("the machine was busy") == 1
    assert "lora and fast: the machine was busy" in text


def test_each_scenario_has_a_table_of_its_own():
    assert render_table([full_summary(), full_summary()]).count("\npeft\n") == 1
    assert render_table([]) == ""


def test_one_round_shows_numbers_without_intervals_and_says_why_nothing_was_tested():
    results = [make_result(LORA), make_result(FAST, seconds=0.05)]
    text = render_table([make_summary([LORA, FAST], results, rounds=1)])
    assert line_of(text, "fast").split()[1:3] == ["2,000", "2.000"]
    assert "fast: speed not tested: 1 of the 5 pairs that a verdict needs; 4 missing" in text
