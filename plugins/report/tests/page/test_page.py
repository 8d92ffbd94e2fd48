"""The report's page and its Markdown twin: the answer first, nothing in a name is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from accel_bench_report.commands import RunLine
from accel_bench_report.page import plots
from accel_bench_report.page.page import page
from accel_bench_report.page.plot_svg import tick_text
from accel_bench_report.page.plots import (
    MISSING,
    MOST_HOVERED,
    Series,
    curves,
    pareto,
    strips,
    thinned,
)
from accel_bench_report.page.render_html import render_html
from accel_bench_report.page.render_markdown import render_page_markdown
from accel_bench_report.page.scenario import scenario_page
from accel_bench_report.page.stored_plan import StoredPlan
from accel_bench_report.page.tables import configuration, row_origin
from accel_bench_report.tables.overview import overview
from analysis_factory import STEADY, make_experiment, make_rounds
from repeated_sessions import make_runs

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.flops.workload import Matmul, Workload
from accel_bench.machine.info import Device
from accel_bench.result import Result, Status
from accel_bench.scenario.experiment import Experiment

from .page_factory import (
    HOSTILE,
    dressed,
    every_ending,
    page_of_endings,
    scenario_of_endings,
)


class Tags(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for key, value in attrs if key == "id" and value]


def line(number: int, **changes: object) -> RunLine:
    """The columns of one of many runs."""
    values: dict[str, object] = {
        "command": f"command-{number // 20:04}",
        "run_id": f"run-{number}",
        "session": f"command-{number // 20:04}",
        "experiment_id": "e",
        "scenario": "many",
        "stack": f"stack-{number % 4}",
        "sweep": "{}",
        "tag": None,
        "round": number % 20,
        "attempt": 0,
        "status": "ok",
        "started_at": f"2026-01-{1 + number // 1000:02}T{number // 60 % 24:02}:{number % 60:02}:00",
        "tokens_per_second": 100.0 + number % 7,
        "peak_memory_bytes": 2**20,
        "device": "cpu",
    }
    return RunLine(**{**values, **changes})  # type: ignore[arg-type]


def test_the_answer_stands_first_and_every_ending_is_counted() -> None:
    text = render_html(page_of_endings())
    body = text[text.index('<p class="answer">') :]
    assert re.sub("<[^>]*>", "", body).startswith("fast is 2.000 times as fast as baseline")
    assert "8 stacks: 3 measured, 1 failed, 1 imported, 1 invalid, 1 out of memory" in body
    assert body.index("Not ranked, invalid:") > body.index(">baseline<")
    assert "attention sdpa" in body
    assert "measured here" in body
    assert "python -m accel_bench run scenario.yaml" in body


@pytest.mark.parametrize(
    ("seconds", "answer"),
    [
        (STEADY, "is equally fast"),
        ((0.1, 0.07, 0.13, 0.08, 0.12), "cannot be distinguished from"),
    ],
)
def test_nothing_changed_and_could_not_tell_are_answers(
    seconds: tuple[float, ...], answer: str
) -> None:
    base, other = make_experiment("base"), make_experiment("other")
    runs = [*make_rounds(base, STEADY), *make_rounds(other, seconds)]
    planned = tuple(PlannedSummary(experiment=one) for one in (base, other))
    one = scenario_page("monday", StoredPlan("base", planned, 5), runs)
    assert answer in page([one], [], plots=False).scenarios[0].answer


def test_no_name_is_markup_in_the_page() -> None:
    text = render_html(page_of_endings(HOSTILE, plots=True))
    tags = Tags(text)
    assert [attributes for tag, attributes in tags.tags if tag == "script"] == [{}]
    assert not [tag for tag, _ in tags.tags if tag == "img"]
    assert not [a for _, a in tags.tags if any(key.startswith("on") for key in a)]
    assert all(str(a.get("href", "#")).startswith(("#", "data:,")) for _, a in tags.tags)
    assert "\u202e" not in text and "\u200b" not in text
    assert len(tags.ids) == len(set(tags.ids))
    anchors = {str(a["href"])[1:] for tag, a in tags.tags if tag == "a" and "href" in a}
    assert anchors <= set(tags.ids)


def test_the_twin_holds_no_markup_of_a_name_and_fits_a_comment() -> None:
    text = render_page_markdown(page_of_endings(HOSTILE))
    prose = re.sub("`[^`]*`", "", text)
    assert not re.search(r"(?<!\\)<(?!/?(details|summary|sub)>)", prose)
    assert "\u202e" not in text and "@user" not in prose
    assert text.startswith("## ")
    assert text.index("**fast is 2.000 times as fast") < text.index("| stack |")
    assert "<details><summary>Each again" in text


def test_commands_of_the_twin_are_as_they_are_or_left_out_whole() -> None:
    plan, runs = every_ending()
    commands = {"fast": ("run", "`date`", "```", "x" * 900), "baseline": ("run", "y" * 20_000)}
    runs = [
        run.model_copy(update={"command": commands.get(run.experiment.stack.name, run.command)})
        for run in runs
    ]
    made = page([scenario_page("monday", plan, runs)], [], plots=False)
    text = render_page_markdown(made)
    assert f"\n````bash\nrun '`date`' '```' {'x' * 900}\n````\n" in text
    assert "yyyy" not in text
    assert "1 more commands are left out, for which there is no room here." in text


def test_times_are_read_as_people_say_them() -> None:
    made = page_of_endings()
    assert made.scenarios[0].jobs[0].hours == "138 h 54 min"
    text = render_html(made)
    assert "These figures are of the measured window alone; start-up" in text


def test_compiling_that_only_the_baseline_does_is_shown() -> None:
    plan, runs = every_ending()
    one = scenario_page("monday", plan, runs)
    changed = [
        replace(row, waterfall=row.waterfall and row.waterfall._replace(compile_seconds=-5e6))
        for row in one.rows
    ]
    made = page([replace(one, points=(tuple(changed),))], [], plots=False)
    assert made.scenarios[0].waterfalls[0].added == "-500 ms"
    assert "the baseline&#39;s alone or longer" in render_html(made).replace("'", "&#39;")
    text = render_page_markdown(made)
    assert "| compiling, -5e+06 s spread over 1,000,000,000 tokens | -500 ms |" in text


def test_the_twin_of_any_input_fits_and_says_what_it_left_out() -> None:
    plan, runs = every_ending(HOSTILE)
    planned = tuple(
        one.model_copy(update={"experiment": one.experiment.model_copy(
            update={"sweep": {"k" * 300: f"{number}" * 3000}})})
        for number in range(60)
        for one in plan.planned
    )  # fmt: skip
    one = scenario_page("monday", plan._replace(planned=planned), runs)
    text = render_page_markdown(page([one] * 3, [], [HOSTILE] * 500, plots=False))
    assert len(text) < 65_000
    assert "more parts are left out" in text


def test_what_decides_whether_to_believe_a_page_stands_under_its_answer() -> None:
    one = scenario_of_endings()
    warm = "throttled: the clocks were held down"
    rows = [
        row.model_copy(update={"status": Status.DEGRADED, "reasons": (warm, f"own of {row.stack}")})
        if row.status.completed
        else row
        for row in one.summary.experiments
    ]
    load = "other programs used 40 % of the CPUs during these runs"
    changes = {"experiments": tuple(rows), "noise": (load,)}
    made = page([replace(one, summary=one.summary.model_copy(update=changes))], [], plots=False)
    (shown,) = made.scenarios
    assert shown.doubts == [f"load: {load}", f"all rows are degraded: {warm}"]
    assert any("degraded: own of fast" in note for note in shown.notes)
    for text in (render_html(made), render_page_markdown(made)):
        assert text.count(load) == text.count(warm) == 1
        assert text.index(shown.answer[:9]) < text.index(load) < text.index(warm)
        assert text.index(warm) < text.index("8 stacks: 3 measured")


def test_what_was_skipped_is_grey_and_nothing_bad() -> None:
    cells = {row.stack: row.cells[-1] for row in page_of_endings().scenarios[0].rows}
    assert cells["skipped"][1:] == (("skipped",), "quiet")
    assert cells["broken"][1:] == (("failed",), "bad")
    assert '<span class="verdict quiet">skipped</span>' in render_html(page_of_endings())


def test_a_page_without_matplotlib_says_how_to_get_plots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    made = page_of_endings(plots=True)
    assert MISSING in made.notes and not made.scenarios[0].figures
    assert "pip install &#39;accel-bench[report]&#39;" in render_html(made)


def test_each_process_is_a_dot_in_the_colours_of_the_page() -> None:
    series = [Series("a $x_", 0, [(1.0, 0), (2.0, 0), (4.0, 0)], (2.0, 1.0, 4.0))]
    plot = strips("Speed <b>", "", [*series, Series("</svg>", 9, [(1.0, 0)])], "tokens/s")
    assert plot.wide.count("fill: var(--s0); fill-opacity") == 3
    assert "<b>" not in plot.wide and plot.wide.count("</svg>") == 1
    assert "http" not in plot.wide and "#c0000" not in plot.wide
    assert "a $x_" in plot.narrow


def test_every_point_has_its_value_and_whole_numbers_have_whole_ticks() -> None:
    series = [Series("a&b", 0, [(float(step), 9.5 - step) for step in range(100)])]
    plot = curves("Loss", "", series, ("step", "loss"))
    for drawn in (plot.wide, plot.narrow):
        points = re.findall(r"<use [^>]*><title>a&amp;b: step (\d+), loss ([\d.-]+)</title>", drawn)
        assert len(points) == MOST_HOVERED and points[0] == ("0", "9.5")
        assert points[-1] == ("99", "-89.5")
    few = [Series("a", 0, [(1.0, 5.0), (2.0, 6.0), (3.0, 7.0)])]
    for drawn in curves("Speed", "", few, ("devices", "tokens/s"), dots=True)[2:]:
        ticks = re.findall(r">([\d.]+)</text>", drawn)
        assert ticks[:3] == ["1", "2", "3"] and not {"1.5", "1.25", "2.5"} & set(ticks[:-2])


def test_an_interval_that_tells_nothing_does_not_stretch_a_plot() -> None:
    wide = (STEADY[0], 5 * STEADY[0])
    runs = [run for name in ("lora", "fast") for run in make_rounds(make_experiment(name), wide)]
    plans = {run.experiment.id: PlannedSummary(experiment=run.experiment) for run in runs}
    plan = StoredPlan("lora", tuple(plans.values()), 2)
    (made,) = page([scenario_page("monday", plan, runs)], []).scenarios
    (speed,) = [plot for plot in made.figures if plot.title == "Speed"]
    assert "Intervals that reach to twice the estimate are left out." in speed.caption
    assert "interval " not in speed.wide and "lora: " in speed.wide


def test_bars_of_memory_begin_after_the_imports() -> None:
    made = page_of_endings()
    view = made.scenarios[0].memories[0]
    assert view.text.startswith("900 bytes at the peak, the whole process, 400 bytes of it imports")
    assert [(part.name, part.width) for part in view.parts] == [
        ("data and model", "40.00"),
        ("acceleration and optimizer", "10.00"),
        ("training, at its peak", "50.00"),
    ]
    text = render_html(made)
    assert 'title="data and model 200 bytes"' in text
    assert "A bar begins after the imports. The longest bar is 500 bytes." in text


def test_long_series_keep_their_ends_and_the_frontier_has_no_beaten_point() -> None:
    points = [(float(x), 0.0) for x in range(10_000)]
    kept = thinned(points)
    assert (len(kept), kept[0], kept[-1]) == (600, points[0], points[-1])
    assert pareto([(3, 5), (1, 1), (2, 4), (2, 3), (4, 4)]) == [(1, 1), (2, 4), (3, 5)]


@pytest.mark.parametrize("field", ["series", "device", "origin"])
def test_different_work_devices_and_origins_are_rows_of_their_own(field: str) -> None:
    values = {"series": ("batch4", "batch8"), "device": ("H100", "a CPU"),
              "origin": ("measured", "exported")}[field]  # fmt: skip
    lines = [
        line(20 * number, started_at=f"2026-01-{number + 1:02}T00:00:00Z", stack="one",
             tokens_per_second=(100.0, 80.0)[number > 9] + number % 3 * 0.1,
             **{field: values[number > 9]})
        for number in range(20)
    ]  # fmt: skip
    rows = overview(lines)
    assert [len(row.speeds) for row in rows] == [10, 10]
    made = page([], rows)
    if field != "series":
        assert all(f">{value}<" in render_html(made) for value in values)


def test_a_run_without_a_date_has_no_time_and_no_rounds() -> None:
    old = line(0, started_at="1970-01-01T00:00:00Z", origin="imported")
    made = page([], overview([old]))
    assert "time not recorded" in render_html(made) and "1970" not in render_html(made)
    plan, runs = every_ending()
    found = [
        run.model_copy(update={"started_at": "1970-01-01T00:00:00Z", "round": number})
        for number, run in enumerate(run for run in runs if run.imported)
    ]
    planned = tuple(one for one in plan.planned if one.experiment.stack.name == "foreign")
    one = scenario_page("monday", plan._replace(planned=planned), found)
    assert page([one], [], plots=False).scenarios[0].measured == (
        "1 run imported, time not recorded · session monday"
    )


def test_no_two_parts_of_a_page_share_an_id() -> None:
    pages = []
    for scenario, stacks in (
        ("a", ("memory", "notes", "time", "x", "x-details", "b-c")),
        ("a-b", ("c", "memory")),
        ("a", ("memory",)),
        ("overview", ("name",)),
    ):
        found = [named_in(scenario, stack) for stack in stacks]
        planned = tuple(PlannedSummary(experiment=one) for one in found)
        runs = [run for one in found for run in dressed(make_rounds(one, STEADY))]
        pages.append(scenario_page("m", StoredPlan(stacks[0], planned, 5), runs))
    tags = Tags(render_html(page(pages, [], plots=False)))
    assert len(tags.ids) == len(set(tags.ids))
    anchors = {str(a["href"])[1:] for tag, a in tags.tags if tag == "a" and "href" in a}
    assert anchors <= set(tags.ids)
    assert {"row-a-b-c", "row-a-b-c-2", "row-a-memory", "part-a-memory"} <= set(tags.ids)


def named_in(scenario: str, stack: str) -> Experiment:
    """Return an experiment of a scenario and a stack of any name."""
    experiment = make_experiment("any")
    return experiment.model_copy(
        update={
            "scenario": experiment.scenario.model_copy(update={"name": scenario}),
            "stack": experiment.stack.model_copy(update={"name": stack}),
        }
    )


def test_memory_says_what_it_counts_and_the_twin_where_a_row_is_from() -> None:
    one = scenario_of_endings()
    rows = [row.model_copy(update={"peak_memory_kind": "rss_above_imports",
                                   "peak_memory_bytes": 2**20})
            for row in one.summary.experiments]  # fmt: skip
    summary = one.summary.model_copy(update={"experiments": tuple(rows)})
    made = page([replace(one, summary=summary)], [], plots=False)
    assert "host MiB above imports" in render_html(made)
    assert "900 bytes at the peak, the whole process" in render_html(made)
    text = render_page_markdown(made)
    assert "| memory host MiB above imports |" in text
    assert "| origin |" in text and "| imported |" in text


class TwoMachines:
    """Repetitions of the session's bundle, of which one reproduced the stack `fast`."""

    def badges(self, *_: object) -> dict[tuple[str, str], tuple[str, str]]:
        """Return a badge for that stack."""
        return {("fast", "{}"): ("reproduced on 1 of 2 machines", "its bundle was repeated")}


def test_a_badge_stands_behind_where_a_row_is_from() -> None:
    runs, baseline = make_runs(), "lora"
    plans = {run.experiment.id: PlannedSummary(experiment=run.experiment) for run in runs}
    plan = StoredPlan(baseline, tuple(plans.values()), 5)
    one = scenario_page("monday", plan, runs, TwoMachines())
    badges = {row.summary.stack: row_origin(row) for row in one.rows}
    assert badges[baseline][0] == badges["slow"][0] == "measured here"
    short, full = badges["fast"]
    assert short == "measured here, reproduced on 1 of 2 machines"
    assert full == "measured by this program; its bundle was repeated"
    assert short in render_html(page([one], [], plots=False))
    assert short in render_page_markdown(page([one], [], plots=False))


def test_speed_is_drawn_over_a_swept_number_and_the_time_of_each_step() -> None:
    stacks = ("lora", "fast")
    points = [
        make_experiment(stack, sweep={"train.micro_batch_size": size, "data.use": data})
        for stack in stacks
        for size in (1, 2, 4)
        for data in ("text", "synthetic")
    ]
    runs = [run for point in points for run in make_rounds(point, STEADY)]
    plan = StoredPlan("lora", tuple(PlannedSummary(experiment=one) for one in points), 5)
    (made,) = page([scenario_page("monday", plan, runs)], []).scenarios
    titles = [plot.title for plot in made.figures]
    assert "Time of each step" in titles and "Speed over data.use" not in titles
    (plot,) = [plot for plot in made.figures if plot.title == "Speed over train.micro_batch_size"]
    for name in ("lora text", "lora synthetic", "fast text", "fast synthetic"):
        assert plot.wide.count(f">{name}</text>") == 1
    assert "<title>fast text: train.micro_batch_size 4, tokens/s 999.8</title>" in plot.wide
    assert "Behind each stack stands its data.use." in plot.caption
    (strips_of_speed,) = [plot for plot in made.figures if plot.title == "Speed"]
    assert ">lora 4, synthetic</text>" in strips_of_speed.wide
    assert "<title>lora 4, synthetic: 1,000 tokens/s</title>" in strips_of_speed.wide
    assert "stands its train.micro_batch_size and data.use." in strips_of_speed.caption


def test_efficiency_is_drawn_of_stacks_whose_peak_and_flops_are_known() -> None:
    experiments = [make_experiment(name) for name in ("lora", "fast")]
    runs = [run for one in experiments for run in make_rounds(one, STEADY)]
    plan = StoredPlan("lora", tuple(PlannedSummary(experiment=one) for one in experiments), 5)
    (made,) = page([scenario_page("monday", plan, runs)], []).scenarios
    assert "Efficiency" not in [plot.title for plot in made.figures]
    known = [on_a_gpu(run, known=run.experiment.stack.name == "fast") for run in runs]
    (made,) = page([scenario_page("monday", plan, known)], []).scenarios
    (plot,) = [plot for plot in made.figures if plot.title == "Efficiency"]
    assert ">fast</text>" in plot.wide and ">lora</text>" not in plot.wide
    assert "<title>fast: 30 % MFU</title>" in plot.wide


def on_a_gpu(run: Result, known: bool) -> Result:
    """Return the run on an L4, with 30 % of its peak in a step of 0.1 s where FLOPs are known."""
    (rank,) = run.ranks
    assert rank.window is not None
    tokens = rank.window.samples[0].real_tokens
    rows = round(0.3 * 121e12 * 0.1 / tokens / 6)
    changes = {
        "device": Device("cuda", name="NVIDIA L4", uuid="GPU-1"),
        "workload": Workload(matmuls=(Matmul(name="all", rows=rows, columns=1),))
        if known
        else None,
        "effective": rank.effective.model_copy(update={"matmul_dtype": "bfloat16"}),
    }
    return run.model_copy(update={"ranks": (rank.model_copy(update=changes),)})


def test_the_time_of_a_step_is_drawn_by_hardware_where_a_scenario_ran_on_several() -> None:
    seconds = {"h100-sxm": 0.1, "l4": 0.4}
    lines = [
        line(number, device=device, stack="fast", median_step_seconds=second)._replace(
            command=device, session=device
        )
        for device, second in seconds.items()
        for number in range(3)
    ]
    lines.append(lines[-1]._replace(scenario="alone"))
    made = page([], overview(lines))
    assert [plot.title for plot in made.history] == ["many by hardware"]
    (plot,) = made.history
    assert ">fast h100-sxm</text>" in plot.wide
    assert "<title>fast l4: 400 milliseconds a step</title>" in plot.wide


@pytest.mark.parametrize(
    ("origin", "title"),
    [
        ("exported", "it came with the export there.tar"),
        ("measured", "measured by this program, to repeat the bundle there.tar"),
    ],
)
def test_a_run_that_repeats_a_bundle_is_no_export(origin: str, title: str) -> None:
    (run,) = make_rounds(make_experiment("lora"), STEADY[:1])
    where = run.provenance.model_copy(update={"origin": origin, "file": "there.tar"})
    found = [run.model_copy(update={"provenance": where})]
    plan = StoredPlan("lora", (PlannedSummary(experiment=run.experiment),), 1)
    one = scenario_page("monday", plan, found)
    assert row_origin(one.rows[0])[1] == title


def test_padding_free_shows_the_kernel_that_ran() -> None:
    row = scenario_of_endings().rows[0]
    for kernels, shown in ((None, []), ({"VarlenAttn": 4}, ["attention by VarlenAttn"])):
        effective = row.summary.effective.model_copy(
            update={"padding_free": True, "attention_kernels": kernels}
        )
        summary = row.summary.model_copy(update={"effective": effective})
        texts = [text for text, _ in configuration(replace(row, summary=summary), None)]
        assert [text for text in texts if text.startswith("attention")] == shown
        assert "without padding" in texts


def test_many_runs_become_a_row_for_each_stack_and_count_last_attempts() -> None:
    lines = [line(number) for number in range(2000)]
    lines += [line(0, attempt=1, status="failed", tokens_per_second=None)]
    rows = overview(lines)
    assert [row.stack for row in rows] == ["stack-0", "stack-1", "stack-2", "stack-3"]
    assert rows[0].endings == {"ok": 499, "failed": 1}
    assert len(rows[1].speeds) == 100
    made = page([], rows)
    assert made.overview is not None and len(made.history) == 1
    assert "2,000 selected runs" in render_html(made)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.85, "0.85"), (9000.0, "9000"), (12000.0, "12k"), (3_500_000.0, "3.5M"), (0.0, "0")],
)
def test_a_number_of_an_axis_stands_alone(value: float, text: str) -> None:
    assert tick_text(value) == text
