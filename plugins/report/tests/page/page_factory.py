"""Pages made up for tests: a scenario with every ending, and hostile text wherever it can stand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accel_bench_report.page.page import Page, page
from accel_bench_report.page.scenario import ScenarioPage, scenario_page
from accel_bench_report.page.stored_plan import StoredPlan
from accel_bench_report.tables.overview import overview
from analysis_factory import STEADY, make_experiment, make_result, make_rounds, scaled

from accel_bench.analysis.aggregate import PlannedSummary
from accel_bench.machine.info import Machine
from accel_bench.machine.process_memory import Stage
from accel_bench.result import Metric, PhaseSplit, Provenance, Result, Status

HOSTILE = (
    "\"'><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "</script><a href=javascript:alert(1)>\u202eevil\u200b $\\frac{ {{7*7}} | `x` @user "
    + "w"
    * 150
)
"""What names, reasons and logs of other people may hold."""

MACHINE = Machine(
    host="bench-1",
    system="Linux 6",
    processor="a CPU",
    cores=4,
    memory_bytes=2**34,
    python="3.12",
    versions={"torch": "2.13.0"},
)


def dressed(runs: Sequence[Result], shares: Sequence[float] = (0.1, 0.3, 0.4)) -> list[Result]:
    """Return the runs with a machine, the phases of a step, the stages of a process and its RSS."""
    dressed_runs = []
    for run in runs:
        rank = run.ranks[0]
        assert rank.window is not None
        step = rank.window.samples[0].seconds
        names = ("data", "forward", "backward")
        seconds = {name: share * step for name, share in zip(names, shares, strict=True)}
        rss = Metric(
            name="peak_rss_bytes", value=900, unit="bytes", scope="rank", figure="peak_rss",
            kind="rss",
        )  # fmt: skip
        marks = (("imports", 400), ("load_model", 600), ("build", 650), ("window", 800))
        changes: dict[str, Any] = {
            "phases": PhaseSplit(steps=3, step_seconds=step, seconds=seconds),
            "stages": tuple(
                Stage(name=name, seconds=float(number), host_bytes=size, host_peak_bytes=size)
                for number, (name, size) in enumerate(marks)
            ),
            "metrics": (*rank.metrics, rss),
        }
        changes["effective"] = rank.effective.model_copy(
            update={"attention": "sdpa", "device": "cpu", "optimizer": "AdamW"}
        )
        ranks = (rank.model_copy(update=changes),)
        command = ("python", "-m", "accel_bench", "run", "scenario.yaml")
        dressed_runs.append(
            run.model_copy(update={"ranks": ranks, "machine": MACHINE, "command": command})
        )
    return dressed_runs


def named(stack: str, **changes: Any) -> Any:
    """Return an experiment whose stack has any name: stores of other people hold any."""
    experiment = make_experiment(stack if stack.isidentifier() else "any", **changes)
    return experiment.model_copy(update={"stack": experiment.stack.model_copy(
        update={"name": stack})})  # fmt: skip


def every_ending(hostile: str = "slow") -> tuple[StoredPlan, list[Result]]:
    """Return a plan and its runs: faster, same, and every way to have no figure."""
    baseline, fast, same = named("baseline"), named("fast"), named(hostile)
    broken, large, cut, skipped = named("broken"), named("large"), named("cut"), named("skipped")
    foreign = named("foreign")
    reason = hostile if hostile != "slow" else "it broke"
    bad = ((broken, Status.FAILED), (large, Status.OOM), (cut, Status.INVALID))
    runs = [
        *dressed(make_rounds(baseline, STEADY)),
        *dressed(make_rounds(fast, scaled(0.5)), (0.02, 0.4, 0.4)),
        *dressed(make_rounds(same, scaled(1.0))),
        *(
            make_result(one, status=status, reasons=[reason]).model_copy(
                update={"log_tail": f"Traceback\n{reason}", "command": ("run", reason)}
            )
            for one, status in bad
        ),
        make_result(foreign, ranks=()).model_copy(
            update={"provenance": Provenance(
                origin="imported", format="mllog", file=reason, sha256="0", imported_at="now")}
        ),
    ]  # fmt: skip
    planned = [
        PlannedSummary(experiment=one)
        for one in (baseline, fast, same, broken, large, cut, foreign)
    ]
    planned.append(PlannedSummary(experiment=skipped, skipped=(reason,)))
    return StoredPlan("baseline", tuple(planned), 5), runs


def scenario_of_endings(hostile: str = "slow") -> ScenarioPage:
    """Return the page of that plan."""
    plan, runs = every_ending(hostile)
    return replace(scenario_page("monday", plan, runs), arguments=("accel-bench", "run"))


def page_of_endings(hostile: str = "slow", plots: bool = False) -> Page:
    """Return a page with that scenario alone."""
    one = scenario_of_endings(hostile)
    return page([one], overview([]), (hostile,), ("accel-bench", "report", hostile), plots=plots)


def page_of_a_sweep() -> Page:
    """Return a page with plots of stacks with long names at three sizes of the micro-batch."""
    stacks = ("baseline", "activation-checkpointing-of-every-second-layer", "padding-free")
    points = [
        named(stack, sweep={"train.micro_batch_size": size})
        for size in (1, 2, 4)
        for stack in stacks
    ]
    runs = [run for number, point in enumerate(points)
            for run in dressed(make_rounds(point, scaled(1 + number / 7)))]  # fmt: skip
    plan = StoredPlan("baseline", tuple(PlannedSummary(experiment=one) for one in points), 5)
    one = replace(scenario_page("monday", plan, runs), arguments=("accel-bench", "run"))
    return page([one], [])
