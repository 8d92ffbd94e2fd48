"""Runs written in other programs' formats are read back equal, and marked as imported."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from store.store_factory import make_experiment, make_rank, make_result

from accel_bench.errors import ImportFileError
from accel_bench.interchange import export_lines
from accel_bench.machine.info import Device
from accel_bench.result import Metric, RankResult, Result, Status

from .files import CSV, MLLOG, write
from .test_formats import figures, imported

TWO = make_experiment(
    "nf4",
    data={"sequence_length": 110},
    train={"micro_batch_size": 1, "precision": "bf16-autocast"},
    resources={"devices": 2},
    adapter={"use": "lora", "r": 8, "target_modules": ["q_proj", "v_proj"]},
)


def rank(number: int) -> RankResult:
    """A rank on a GPU, with readings of allocator and driver."""
    peak = Metric(
        name="peak_memory_bytes",
        figure="run_peak_memory",
        kind="allocated",
        value=3000 + number,
        unit="bytes",
        scope="device",
    )
    driver = Metric(
        name="driver", figure="run_peak_driver", value=2 * 1024**2, unit="bytes", scope="device"
    )
    update = {"device": Device("cuda", number, "NVIDIA L4", f"GPU-{number}")}
    return make_rank(number).model_copy(update={**update, "metrics": (peak, driver)})


def measured() -> Result:
    """A run of two ranks: 1 sample of 110 tokens each, 100 of them real, in half a second."""
    return make_result("run-a", experiment=TWO, ranks=(rank(0), rank(1)))


def written(results: list[Result], form: str) -> str:
    """The text of an export."""
    return "".join(export_lines(results, form))


def lines(results: list[Result]) -> list[dict[str, str]]:
    """The lines of the CSV."""
    return list(csv.DictReader(io.StringIO(written(results, "fms-csv"))))


def test_columns_have_the_units_and_scopes_of_that_program() -> None:
    (line,) = lines([measured()])
    assert line["framework_config"] == "nf4"
    assert line["num_gpus"] == "2"
    assert float(line["train_samples_per_second"]) == 4  # global
    assert float(line["train_steps_per_second"]) == 2
    assert float(line["train_tokens_per_second"]) == 220  # one device, padding included
    assert float(line["mem_peak_torch_mem_alloc_in_bytes"]) == 3000.5
    assert float(line["mem_nvidia_mem_reserved"]) == 2  # MiB
    assert line["bf16"] == "True"
    assert line["fp16"] == ""
    assert (line["peft_method"], line["target_modules"]) == ("lora", "q_proj v_proj")
    assert line["gpu_device_name"] == "NVIDIA L4"
    assert line["provenance"] == "measured"
    assert list(line) == sorted(line)


def test_a_text_of_another_person_is_no_formula_and_no_escape_sequence() -> None:
    stack, error = make_experiment("nf4"), '=HYPERLINK("http://e")\x1b[2J'
    (line,) = lines([make_result("a", experiment=stack, status=Status.FAILED, reasons=(error,))])
    assert line["error_messages"] == '\'=HYPERLINK("http://e")\\x1b[2J'


def test_what_is_exported_can_be_imported_with_equal_figures(tmp_path: Path) -> None:
    failed = make_result("b", ranks=(), status=Status.OOM, reasons=("asked for 2 GiB",))
    text = written([measured(), failed], "fms-csv")
    back, lost = imported(tmp_path, "ours.csv", text)
    found = figures(back)
    assert found["tokens_per_second"] == (440, "1/s", "global")
    assert found["samples_per_second"] == (4, "1/s", "global")
    assert found["peak_driver_memory_bytes"] == (2 * 1024**2, "bytes", "device")
    assert back.experiment.scenario.train == TWO.scenario.train.model_copy(
        update={"max_grad_norm": None}
    )
    assert back.imported
    assert "the file marks the row as 'measured'" in back.provenance.corrections
    assert (lost.status, lost.reasons) == (Status.FAILED, ("asked for 2 GiB",))


def test_an_imported_row_goes_out_as_it_came_in_and_stays_marked(tmp_path: Path) -> None:
    results = imported(tmp_path, "theirs.csv", CSV)
    theirs = list(csv.DictReader(io.StringIO(CSV)))
    ours = lines(results)
    same = [
        "model_name_or_path",
        "num_gpus",
        "train_tokens_per_second",
        "train_samples_per_second",
        "train_loss",
        "r",
    ]
    assert [[line[key] for key in same] for line in ours] == [
        [line[key] for key in same] for line in theirs
    ]
    assert [line["mem_nvidia_mem_reserved"] for line in ours] == [
        line["nvidia_mem_reserved"] for line in theirs
    ]
    assert {line["provenance"] for line in ours} == {"imported fms-csv"}
    # What a file does not state is not made up from defaults.
    assert {line["max_seq_len"] for line in ours} == {""}
    again = imported(tmp_path, "again.csv", written(results, "fms-csv"))
    assert [figures(one).keys() for one in again] == [
        figures(one).keys() - {"epochs", "memory_bytes"} for one in results
    ]


def test_a_run_becomes_lines_of_mlperf_and_comes_back(tmp_path: Path) -> None:
    aborted = make_result("b", ranks=(), status=Status.OOM, reasons=("asked for 2 GiB",))
    text = written([measured(), aborted], "mllog")
    events = [json.loads(line.removeprefix(":::MLLOG ")) for line in text.splitlines()]
    assert list(events[0]) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
    kinds = {one["key"]: one["event_type"] for one in events}
    assert (kinds["run_start"], kinds["run_stop"]) == ("INTERVAL_START", "INTERVAL_END")
    assert {one["metadata"]["provenance"] for one in events} == {"measured"}
    losses = [one["value"] for one in events if one["key"] == "train_loss"]
    assert losses == [4.0, 3.5, 3.0]  # of both ranks, warm-up included
    back, lost = imported(tmp_path, "ours.log", text)
    assert figures(back)["samples_per_second"][0] == 4
    assert figures(back)["time_to_train_seconds"][0] == 1.5  # three steps
    assert back.provenance.series["train_loss"] == (4.0, 3.5, 3.0)
    assert back.experiment.scenario.train.global_batch_size == 2
    assert lost.reasons == ("run_stop states the status 'aborted'",)


def test_an_imported_log_goes_out_marked(tmp_path: Path) -> None:
    text = written(imported(tmp_path, "a.log", MLLOG), "mllog")
    assert "imported mllog" in text
    (back,) = imported(tmp_path, "b.log", text)
    assert figures(back)["time_to_train_seconds"][0] == 100
    assert figures(back)["samples_per_second"][0] == 12.5


def test_a_format_that_is_only_read_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "x", "")
    with pytest.raises(ImportFileError, match=r"trainer-state \(.*\) is read, and not written"):
        written([], "trainer-state")


@pytest.mark.parametrize("form", ["fms-csv", "mllog"])
def test_a_run_is_read_when_its_lines_are(form: str) -> None:
    def runs() -> Iterator[Result]:
        yield measured()
        raise AssertionError("a second run was read")

    found = export_lines(runs(), form)
    assert "nf4" in "".join(islice(found, 2 if form == "fms-csv" else 5))


def test_the_tree_of_the_guide_has_a_leaf_for_each_run_and_its_summary() -> None:
    failed = make_result(
        "run-b", round=1, experiment=TWO, status=Status.OOM, reasons=("too large",)
    )
    document = json.loads(written([measured(), failed], "ipfs-json"))
    (model,) = document["benchmarks"]["text_generation"].values()
    leaves = model["cuda"]["training_results"] | model.get("cpu", {}).get("training_results", {})
    ran, lost = sorted(leaves.values(), key=lambda leaf: leaf["status"])
    assert (ran["throughput"], ran["effective_batch_size"], ran["distributed"]) == (4, 2, True)
    assert ran["training_time"] == {"min": 0.5, "max": 0.5, "mean": 0.5, "std": 0.0}
    assert ran["memory_usage"] == {"max": 3001 / 2**20, "unit": "MiB"}
    assert (lost["status"], lost["error"]) == ("failed", "too large")
    summary = model["cuda"]["performance_summary"]
    assert summary["training_time"]["by_batch_size"] == {"1": 0.5}
    assert summary["training_time"]["by_mixed_precision"] == {"mixed_precision": 0.5}
    assert summary["throughput"]["mean"] == 4


def test_no_run_of_the_tree_takes_another_one_s_place() -> None:
    again = measured().model_copy(update={"run_id": "run-z", "session": "later"})
    document = json.loads(written([measured(), again], "ipfs-json"))
    (model,) = document["benchmarks"]["text_generation"].values()
    assert len(model["cuda"]["training_results"]) == 2
    failed = make_result("run-b", experiment=TWO, status=Status.OOM, reasons=("too large",))
    (model,) = json.loads(written([failed], "ipfs-json"))["benchmarks"]["text_generation"].values()
    assert [branch["status"] for branch in model.values()] == ["failed"]


def test_the_tree_of_the_guide_is_read_back_equal(tmp_path: Path) -> None:
    (found,) = imported(tmp_path, "training.json", written([measured()], "ipfs-json"))
    assert found.status is Status.OK
    known = figures(found)
    assert (known["samples_per_second"][0], known["mean_step_seconds"][0]) == (4, 0.5)
    assert found.experiment.scenario.train.micro_batch_size == 1
    assert found.experiment.scenario.data.sequence_length == 110
