"""TensorBoard, MLflow and W&B: logged data, read by their own readers.

MLflow and W&B are no part of the tests' environment: `make release` installs them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from accel_bench_trackers.tensorboard import TensorBoard
from accel_bench_trackers.tracker import verdict_figures
from analysis_factory import LORA, NF4, make_rounds, make_summary

import accel_bench
from accel_bench import Result, TimeSeries, describe_run
from accel_bench.analysis.conclusion import conclusion
from accel_bench.analysis.quantity import compared_by
from accel_bench.plugins.active import ActivePlugins
from accel_bench.plugins.manager import activate_use
from accel_bench.result import Metric, Status
from accel_bench.runner.observers import Trackers
from accel_bench.scenario.uses import Use

RESULTS = [*make_rounds(LORA, [0.2, 0.21]), *make_rounds(NF4, [0.1, 0.101])]
SUMMARY = make_summary([LORA, NF4], RESULTS, rounds=2).model_copy(
    update={"scenario": LORA.scenario.name}
)


def track(name: str, folder: Path, **options: Any) -> None:
    """Log all results and their summary, as a session does."""
    use = Use(use=name, options=options)
    active = ActivePlugins([activate_use(use, "trackers", (), lambda location: "here")])
    warnings: list[str] = []
    trackers = Trackers(active, folder, warnings.append)
    for result in RESULTS:
        trackers.record(result)
    trackers.finish(lambda: SUMMARY)
    assert warnings == []


def test_a_run_is_described_by_the_names_of_the_store() -> None:
    result = RESULTS[0]
    run = describe_run(result)
    assert run.identity["run_id"] == result.run_id
    assert run.identity["status"] == "ok"
    assert run.settings["train.learning_rate"] == 1e-3
    assert run.figures["median_step_seconds"] == pytest.approx(0.2)
    assert run.figures["peak_memory_bytes"] == 1000
    assert [step.measured for step in run.steps] == [False, True, True]
    assert [step.loss for step in run.steps] == pytest.approx([2.0, 1.99, 1.98])
    assert all(step.real_tokens > 0 for step in run.steps)


def test_a_run_that_does_not_count_has_no_figure_to_rank_by() -> None:
    invalid = RESULTS[0].model_copy(
        update={
            "status": Status.INVALID,
            "metrics": (Metric(name="speed", value=1.0, unit="1", scope="global", plugin="p"),),
        }
    )
    run = describe_run(invalid)
    assert run.identity["status"] == "invalid"
    assert not {"tokens_per_second", "median_step_seconds", "mfu"} & {*run.figures}
    assert not [name for name in run.figures if name.startswith("metrics.")]
    assert run.figures["peak_memory_bytes"] == 1000


def read_events(folder: Path) -> Any:
    """Read a folder by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    return accumulator.Reload()


def of_run(root: Path, result: Result) -> Path:
    (found,) = root.rglob(f"*{result.run_id}")
    return found


def test_tensorboard_reads_figures_steps_settings_and_the_verdict(tmp_path: Path) -> None:
    track("tensorboard", tmp_path)
    for result in RESULTS:
        run = describe_run(result)
        events = read_events(of_run(tmp_path / "trackers" / "tensorboard", result))
        scalars = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
        logged = {tag: found[0].value for tag, found in scalars.items() if tag in run.figures}
        assert logged == pytest.approx(run.figures)
        losses = [(one.step, one.value) for one in scalars["step.loss"]]
        assert losses == [(step.step, pytest.approx(step.loss)) for step in run.steps]
        assert [one.step for one in scalars["step.seconds"]] == [1, 2]
        assert len(scalars["step.real_tokens"]) == len(run.steps)
        (text,) = events.Tensors("settings")
        assert "| train.learning_rate | 0.001 |" in text.tensor_proto.string_val[0].decode()
    verdict = read_events(tmp_path / "trackers" / "tensorboard" / RESULTS[0].session / "verdict")
    (text,) = verdict.Tensors("verdict")
    assert conclusion(SUMMARY) in text.tensor_proto.string_val[0].decode()
    (ratio,) = verdict.Scalars("verdict.nf4.speed_ratio")
    assert ratio.value == pytest.approx(SUMMARY.experiments[1].ratio.median)  # type: ignore[union-attr]


def test_a_ratio_of_another_quantity_is_not_called_one_of_speed() -> None:
    results = [compared_by(run, "peak_memory_bytes") for run in RESULTS]
    planned = [results[0].experiment, results[-1].experiment]
    figures = dict(verdict_figures(make_summary(planned, results, rounds=2)))
    assert figures["nf4.times_as_good.peak_memory_bytes"] == 1.0
    assert not any("speed_ratio" in name for name in figures)


def test_tensorboard_brings_no_torch_into_the_parent(tmp_path: Path) -> None:
    program = (
        "import sys, accel_bench_trackers.tensorboard_impl; "
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.release
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow-skinny is not installed")
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_figures_steps_settings_and_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    track("mlflow", tmp_path)
    client = MlflowClient(f"sqlite:///{tmp_path / 'trackers' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(LORA.scenario.name)
    runs = {
        run.data.tags.get("accel_bench.run_id"): run
        for run in client.search_runs([experiment.experiment_id])
    }
    for result in RESULTS:
        run, found = describe_run(result), runs[result.run_id]
        logged = {key: one for key, one in found.data.metrics.items() if key in run.figures}
        assert logged == pytest.approx(run.figures)
        assert found.data.params["train.learning_rate"] == "0.001"
        assert found.data.tags["accel_bench.stack"] == result.experiment.stack.name
        history = client.get_metric_history(found.info.run_id, "step.loss")
        losses = {one.step: one.value for one in history}
        assert losses == {step.step: pytest.approx(step.loss) for step in run.steps}
    verdict = runs[None]
    assert verdict.data.tags["accel_bench.conclusion"] == conclusion(SUMMARY)
    assert verdict.data.metrics["nf4.speed_ratio"] > 1


@pytest.mark.release
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_figures_steps_settings_and_the_verdict(tmp_path: Path) -> None:
    track("wandb", tmp_path)
    found = [read_offline(path) for path in (tmp_path / "trackers").rglob("*.wandb")]
    assert len(found) == len(RESULTS) + 1
    by_id = {one["config"].get("run", {}).get("run_id"): one for one in found}
    for result in RESULTS:
        run, logged = describe_run(result), by_id[result.run_id]
        figures = {key: one for key, one in logged["summary"].items() if key in run.figures}
        assert figures == pytest.approx(run.figures)
        assert logged["config"]["train.learning_rate"] == 1e-3
        losses = [row["step.loss"] for row in logged["history"]]
        assert losses == pytest.approx([step.loss for step in run.steps])
    assert by_id[None]["summary"]["conclusion"] == conclusion(SUMMARY)


@pytest.mark.release
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
@pytest.mark.filterwarnings("ignore")
def test_wandb_leaves_the_callers_own_run_open(tmp_path: Path) -> None:
    import wandb

    own = wandb.init(mode="offline", project="mine", dir=str(tmp_path))
    try:
        track("wandb", tmp_path)
        own.log({"mine": 1.5})
    finally:
        own.finish()
        wandb.teardown()
    (file,) = (tmp_path / "wandb").rglob("*.wandb")
    assert [row.get("mine") for row in read_offline(file)["history"]] == [1.5]


def read_offline(path: Path) -> dict[str, Any]:
    """Read an offline run: records of wandb's own protocol in the blocks of a LevelDB log."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, part = path.read_bytes(), 7, b""
    found: dict[str, Any] = {"config": {}, "history": [], "summary": {}}
    while place + 7 <= len(data):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        part += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(part)
            part = b""
            note(record, found)
    return found


def note(record: Any, found: dict[str, Any]) -> None:
    """Add the content of a record."""
    updates = [*record.run.config.update, *record.config.update]
    found["config"] |= {
        one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in updates
    }
    if record.WhichOneof("record_type") == "history":
        found["history"].append(
            {
                one.key or ".".join(one.nested_key): json.loads(one.value_json)
                for one in record.history.item
            }
        )
    for one in record.summary.update:
        found["summary"][one.key or ".".join(one.nested_key)] = json.loads(one.value_json)


USE = Metric(
    name="use",
    value=60.0,
    unit="percent",
    scope="device",
    rank=0,
    series=TimeSeries(times=(5.0, 5.25), values=(40.0, 80.0)),
)


def test_tracked_runs_are_read_as_a_frame_by_one_call(tmp_path: Path) -> None:
    (result,) = make_rounds(LORA, [0.2])
    tracker = TensorBoard(TensorBoard.Options(), "tensorboard")
    tracker.record_result(result.model_copy(update={"metrics": (USE,)}), None, tmp_path)
    frame = accel_bench.read_events(tmp_path / "trackers")
    steps = frame[frame["Wall Time"].notna()]
    window = result.ranks[0].window
    assert window is not None
    seconds = [sample.seconds for sample in window.samples]
    assert list(steps["step"]) == [sample.step for sample in window.samples]
    assert list(steps["Wall Time"]) == pytest.approx(seconds)
    assert list(steps["Elapsed Time"]) == pytest.approx([seconds[0], sum(seconds)])
    rates = [sample.real_tokens / sample.seconds for sample in window.samples]
    assert list(steps["Elements per Second"]) == pytest.approx(rates)
    assert len(steps) / steps["Wall Time"].sum() == pytest.approx(len(seconds) / sum(seconds))
    series = frame[frame["run"].str.endswith("/series")].dropna(axis="columns", how="all")
    (name,) = {*series} - {"run", "step", "wall_time"}
    assert name == "use_percent_rank0"
    assert list(series["step"]) == [0, 250]
    assert list(series[name]) == [40, 80]
