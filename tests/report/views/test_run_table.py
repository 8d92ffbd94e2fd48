"""The comparison of stacks on a terminal: the answer first, whole numbers, no name as markup."""

from __future__ import annotations

import csv
import io
import sys

import pytest
from analysis_factory import (
    STEADY,
    make_experiment,
    make_rank,
    make_result,
    make_rounds,
    make_summary,
    scaled,
)

from accel_bench.report.formats import render
from accel_bench.report.render_terminal import render_terminal
from accel_bench.report.views.run_table import stacks_report
from accel_bench.result import Status

LORA, FAST, SLOW = (make_experiment(name) for name in ("lora", "fast", "slow"))


QUICKSTART = tuple(
    make_experiment(name)
    for name in ("baseline", "padding-free", "torch-compile", "activation-checkpointing")
)
NOISY = [0.1, 0.093, 0.107, 0.103, 0.1]


def quickstart(stacks=QUICKSTART, **changes):
    """A faster stack, one that is open, one that is slower."""
    times = [STEADY, scaled(0.4), NOISY, scaled(1.25)][: len(stacks)]
    pairs = zip(stacks, times, strict=True)
    runs = [run for stack, seconds in pairs for run in make_rounds(stack, seconds)]
    return make_summary(stacks, runs, baseline="baseline", **changes)


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


def show(*summaries, width=80, verbose=False):
    """What the terminal shows at that width."""
    return render_terminal(stacks_report(summaries, verbose).sections, width)


def line_of(text, stack):
    table = text.partition("──")[2]
    return next(line for line in table.splitlines() if line.startswith(f"{stack} "))


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 120])
def test_the_answer_is_the_first_line_after_the_title_and_names_every_stack(width):
    text = show(quickstart(), width=width)
    assert text.splitlines()[0] == "peft"
    answer = words(text[text.index("\n") : text.index("\n\n")])
    assert answer == (
        "padding-free is 2.500 times as fast as baseline [2.493, 2.507], with a bitwise equal "
        "loss and an equivalent update; activation-checkpointing is slower, 0.800 times as fast as "
        "baseline [0.798, 0.802], with a bitwise equal loss and an equivalent update; "
        "torch-compile (0.87 to 1.14 times as fast) cannot be distinguished from baseline, "
        "about 75 rounds would settle it (--resume --rounds 75)."
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_quickstart_fits_in_the_width_and_breaks_no_word(width):
    text = show(quickstart(), width=width)
    assert max(map(len, text.splitlines())) <= width
    header = text.splitlines().index(next(line for line in text.splitlines() if "──" in line))
    cells = {cell for line in text.splitlines()[header + 1 :] for cell in line.split()}
    assert {"inconclusive", "equivalent", "faster", "slower", "torch-compile"} <= cells
    assert {"activation-checkpointing"} <= cells or {"activation-", "checkpointing"} <= cells


def test_three_stacks_take_at_most_twenty_lines_and_all_of_them_a_few_more():
    assert len(show(quickstart(QUICKSTART[:3])).splitlines()) <= 20
    noisy = quickstart().model_copy(
        update={"noise": ("other work took up to 45 % of the CPUs during baseline (round 2)",)}
    )
    assert len(show(noisy).splitlines()) <= 24


def test_details_are_for_those_who_ask():
    short, long = show(quickstart()), show(quickstart(), verbose=True)
    for detail in ("p50/p95", "last loss", "as the scenario says", "host RSS", "first step"):
        assert detail not in short
        assert detail in words(long)
    assert max(map(len, long.splitlines())) <= 80


def test_there_is_colour_on_a_terminal_and_none_elsewhere(monkeypatch):
    assert "\x1b" not in show(quickstart())
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = show(quickstart())
    assert "\x1b[32mfaster" in text
    assert "\x1b[31mslower" in text
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in show(quickstart())


def test_what_was_skipped_is_grey_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    summary = quickstart()
    left_out = {"status": Status.SKIPPED, "reasons": ("no CUDA device",), "ratio": None}
    rows = (*summary.experiments[:-1], summary.experiments[-1].model_copy(update=left_out))
    text = show(summary.model_copy(update={"experiments": rows}))
    assert "\x1b[90mskipped" in text
    assert "\x1b[31mskipped" not in text and "\x1b[33mskipped" not in text


@pytest.mark.parametrize("width", [80, 160])
def test_a_verdict_of_several_words_has_the_colour_of_all_of_them(width, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    summary = quickstart()
    rows = [row.model_copy(update={"loss_verdict": "inconclusive"}) for row in summary.experiments]
    text = show(summary.model_copy(update={"experiments": tuple(rows)}), width=width)
    assert "\x1b[33minconclusive" in text


def test_a_row_shows_speed_ratio_memory_loss_and_verdict():
    line = words(line_of(show(full_summary(), width=120), "fast"))
    figures = "fast 1,250 ±0.3 % 1.250 [1.248, 1.252] 0.0"
    assert line == f"{figures} bitwise equal equivalent 0 %, limit 1 % faster"


def test_the_distance_and_its_limit_stand_below_the_update_and_equal_bits_need_none():
    lines = show(quickstart(), width=80).splitlines()
    place = max(i for i, line in enumerate(lines) if line.startswith("padding-free "))
    column, loss = lines[place].index("equivalent"), lines[place].index("bitwise")
    assert [line[loss:column].split() for line in lines[place : place + 3]] == [
        *(["bitwise"], ["equal"], []),
    ]
    assert lines[place + 1][column:].split() == ["0", "%,"]
    assert lines[place + 2][column:].split() == ["limit", "1", "%"]


def test_the_interval_of_an_open_ratio_holds_one():
    nearly = make_rounds(FAST, [0.92 * seconds for seconds in NOISY])
    text = words(show(make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *nearly])))
    assert "[99 % interval]" in text
    assert "1.08 [0.95, 1.24]" in text and " inconclusive" in text


def test_a_loss_that_cannot_tell_says_by_how_much_it_moved():
    still = [2.0, 1.9999, 1.9998]
    base, fast = (
        [make_result(e, round=i, ranks=[make_rank(step_seconds=(s, s), losses=still)])
         for i, s in enumerate(seconds)]
        for e, seconds in ((LORA, STEADY), (FAST, scaled(0.8)))
    )  # fmt: skip
    summary = make_summary([LORA, FAST], [*base, *fast])
    text = show(summary)
    assert words(text[: text.index("──")]).startswith(
        "peft fast is 1.250 times as fast as lora [1.248, 1.252], with an equivalent update, "
        "its loss is inconclusive (the loss moved by 0.01 % in all, and 0.1 % is allowed)."
    )
    assert " inconclusive 0 %, limit 0.1 % " in words(line_of(show(summary, width=160), "fast"))
    assert "equivalent loss" not in text


def test_the_baseline_is_marked_and_a_failure_shows_no_number():
    text = show(full_summary())
    assert line_of(text, "lora").split()[-1] == "baseline"
    assert line_of(text, "slow").split() == ["slow", "-", "-", "-", "-", "-", "oom"]


def test_reasons_stand_under_the_table_and_the_answer_says_what_ended():
    text = show(full_summary())
    assert text.splitlines()[-2:] == ["slow: 3 GiB asked", "slow: 0 of 5 runs completed: oom 5"]
    assert "fast is 1.250 times as fast as lora" in text
    assert "slow ended as oom." in words(text)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_number_is_cut_on_a_narrow_terminal(width):
    text = show(full_summary(), width=width)
    cells = text.partition("──")[2]
    assert " 1.250 " in cells
    assert " [1.248, 1.252] " in cells
    assert "…" not in text


def test_a_name_that_is_too_long_is_broken_behind_a_hyphen():
    lines = show(quickstart()).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("activation- "))
    assert lines[first + 1].split()[0] == "checkpointing"


def test_swept_keys_are_columns():
    points = [make_experiment("lora", sweep={"train.micro_batch_size": n}) for n in (4, 8)]
    results = [run for point in points for run in make_rounds(point, STEADY)]
    text = show(make_summary(points, results))
    assert "micro batch" in text
    table = text.partition("──")[2]
    assert [line.split()[1] for line in table.splitlines() if line.startswith("lora ")][:2] == [
        "4",
        "8",
    ]


def test_swept_keys_with_the_same_last_word_are_written_out():
    point = make_experiment("lora", sweep={"data.seed": 1, "train.seed": 2})
    text = show(make_summary([point], make_rounds(point, STEADY)))
    assert "data.seed" in text
    assert "train.seed" in text


def test_markup_in_reasons_and_settings_is_shown_as_it_is():
    odd = make_experiment("odd", settings={"model.id": "[red]x[/red]"})
    summary = make_summary([odd], [], skipped={"odd": ["[link=http://x]y[/link]"]})
    text = show(summary, verbose=True)
    assert "[red]x[/red]" in text
    assert "[link=http://x]y[/link]" in text


def test_control_characters_in_reasons_do_not_reach_the_terminal():
    summary = make_summary([LORA], [], skipped={"lora": ["a\x1b[2Jb\nlora fake row\r\x07"]})
    text = show(summary)
    assert "\x1b" not in text
    assert r"a\x1b[2Jb lora fake row \x07" in text


def test_a_reason_that_holds_for_many_rows_is_written_once():
    runs = [
        make_result(e, round=i, status=Status.DEGRADED, reasons=["throttled: hw_slowdown on GPU-1"])
        for e in (LORA, FAST)
        for i in range(5)
    ]
    text = show(make_summary([LORA, FAST], runs))
    assert text.count("throttled: hw_slowdown on GPU-1") == 1
    assert "lora and fast: degraded: throttled: hw_slowdown on GPU-1" in text


def test_each_scenario_has_a_table_of_its_own():
    assert show(full_summary(), full_summary()).count("\npeft\n") == 1
    assert render([], "table") == ""


def test_one_round_shows_numbers_without_intervals_and_the_answer_why_nothing_was_tested():
    results = [make_result(LORA), make_result(FAST, seconds=0.05)]
    text = show(make_summary([LORA, FAST], results, rounds=1))
    assert line_of(text, "fast").split()[1:3] == ["2,000", "2.00"]
    assert "1 round of the 5 that a verdict needs (--resume --rounds 5)" in words(text)


def test_what_planning_added_and_plugins_summarize_stands_under_the_table_once() -> None:
    summary = full_summary()
    evidence = {"gptq": {"summary": "14 modules in 4 bits", "bits": 4}, "lora": {"modules": 4}}
    rows = [row.model_copy(update={"evidence": evidence}) for row in summary.experiments]
    named_alike = {"slow": {"summary": "nothing is fused " + 100 * "long "}}
    rows[2] = rows[2].model_copy(update={"evidence": named_alike})
    notice = "adapter: lora added to every stack: gptq needs one"
    shown = show(summary.model_copy(update={"experiments": tuple(rows), "notices": (notice,)}))
    assert shown.count("lora and fast: gptq: 14 modules in 4 bits\n") == 1
    assert shown.count(f"{notice}\n") == 1
    assert "slow: nothing is fused long" in shown
    assert shown.count("long") < 40
    assert "modules: 4" not in shown


def test_what_a_plugin_allows_stands_in_the_table_and_whose_it_is_among_the_details():
    ranks = [make_rank(step_seconds=(0.08, 0.08), losses=[2.0, 1.9902, 1.9801])]
    runs = [make_result(FAST, round=i, ranks=ranks, loss_tolerance=2e-2) for i in range(5)]
    summary = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *runs])
    assert "equivalent <0.01 %, limit 2 % " in words(show(summary, width=120))
    allowed = "loss equivalent: by up to 0.00503 %, 2 % allowed by a plugin"
    assert allowed not in words(show(summary))
    assert allowed in words(show(summary, verbose=True))


def test_a_loss_that_is_different_by_design_is_not_called_equivalent():
    ranks = [make_rank(step_seconds=(0.08, 0.08), losses=[2.0, 2.04, 2.0])]
    runs = [make_result(FAST, round=i, ranks=ranks, loss_tolerance=0.5) for i in range(5)]
    summary = make_summary([LORA, FAST], [*make_rounds(LORA, STEADY), *runs])
    text = show(summary)
    said = "its loss is within what a plugin declares (by up to 1.17 %, 50 % allowed by a plugin"
    assert said in words(text)
    assert "within what a plugin declares 1.2 %, limit 50 % " in words(show(summary, width=160))
    assert "equivalent loss" not in text


def test_the_csv_has_rates_losses_and_every_peak_of_memory():
    made = make_summary([LORA], make_rounds(LORA, STEADY))
    (row,) = csv.DictReader(io.StringIO(render([made], "csv")))
    assert float(row["steps_per_second_median"]) == pytest.approx(10, rel=1e-3)
    assert float(row["tokens_per_hour_median"]) == pytest.approx(3.6e6, rel=1e-3)
    assert float(row["loss_mean"]) == pytest.approx(1.99)
    assert {"peak_reserved_bytes", "peak_nvml_bytes", "peak_rss_bytes"} <= set(row)
