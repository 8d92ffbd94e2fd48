"""Every format is recognized; its units and scopes are corrected, with notes."""

from __future__ import annotations

import hashlib
import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from accel_bench_interop.parse import short_name
from accel_bench_interop.reading import MAXIMUM_ROWS, read_files

from accel_bench.analysis.checks.audit import audit
from accel_bench.errors import ImportFileError
from accel_bench.interchange import GROUP, KIND, MAXIMUM_VALUES, Format, read_source
from accel_bench.plugins.doors import find_entries
from accel_bench.result import Result, Status
from accel_bench.scenario.settings import MAXIMUM_SAMPLES

from .files import CSV, IPFS, MLLOG, OPTIMUM, PYTEST, STATE, TRAINER, event, write

FILES: dict[str, tuple[str, str | dict[str, Any]]] = {
    "trainer-results": ("all_results.json", TRAINER),
    "trainer-state": ("trainer_state.json", STATE),
    "fms-csv": ("benchmarks.csv", CSV),
    "optimum-benchmark": ("benchmark.json", OPTIMUM),
    "pytest-benchmark": ("0001_abc.json", PYTEST),
    "mllog": ("result_0.txt", MLLOG),
    "ipfs-json": ("training.json", IPFS),
}
"""A file of each format."""

FORMATS: dict[str, Format] = {
    name: entry.load() for name, entry in find_entries(GROUP, KIND).items() if entry.is_ours
}
"""Formats of the box."""


def imported(folder: Path, name: str, content: str | dict[str, Any], **given: Any) -> list[Result]:
    """The results that one file becomes."""
    files, _ = read_files(write(folder, name, content), None, given)
    (file,) = files
    return [*file.results]


def figures(result: Result) -> dict[str, tuple[Any, str, str]]:
    """Value, unit and scope by name."""
    return {one.name: (one.value, one.unit, one.scope) for one in result.metrics}


def corrections(result: Result) -> str:
    """All corrections as one text."""
    return "\n".join(result.provenance.corrections)


@pytest.mark.parametrize("form", FILES)
def test_a_file_is_recognized_as_its_format_alone_and_says_where_it_comes_from(
    form: str, tmp_path: Path
) -> None:
    path = write(tmp_path, *FILES[form])
    files, _ = read_files(path, None, {})
    assert [file.format for file in files] == [form]
    assert [name for name, one in FORMATS.items() if one.recognizes(read_source(path))] == [form]
    for result in imported(tmp_path, *FILES[form]):
        assert result.imported
        assert result.ranks == ()
        assert audit(result) == []  # its figures are not ours to check
        assert result.provenance.format == form
        assert result.provenance.file == str(path)
        assert result.provenance.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", result.provenance.imported_at)


def test_every_format_has_a_file_here() -> None:
    assert FORMATS.keys() == FILES.keys()


def test_the_trainer_s_tokens_are_those_of_a_device_and_its_memory_adds_up(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "all_results.json", TRAINER)
    found = figures(result)
    assert found["tokens_per_second_per_device"] == (3421.164, "1/s", "device")
    assert "tokens_per_second" not in found
    assert found["samples_per_second"] == (0.835, "1/s", "global")
    assert found["mean_loss"] == (1.292790667215983, "1", "global")
    # The sum that the page of the benchmark utility works out.
    assert found["peak_memory_bytes"] == (4747206656 + 126487040 + 11016635392, "bytes", "device")
    assert result.seconds == 143.6704
    assert "tokens/s is that of one device" in corrections(result)
    assert "the file has no date" in corrections(result)


def test_the_log_of_the_state_is_read_with_the_results_beside_it(tmp_path: Path) -> None:
    write(tmp_path, "trainer_state.json", STATE)
    (result,) = imported(tmp_path, "all_results.json", TRAINER)
    assert result.provenance.series == {"step": (10, 20), "loss": (1.4, 1.2)}
    assert figures(result)["last_loss"][0] == 1.2
    assert figures(result)["mean_loss"][0] == TRAINER["train_loss"]
    assert result.provenance.stated == ("train.micro_batch_size",)
    (alone,) = imported(tmp_path / "other", "trainer_state.json", STATE)
    assert alone.seconds == 60.0


def test_a_folder_counts_no_run_twice(tmp_path: Path) -> None:
    for name in ("all_results.json", "train_results.json"):
        write(tmp_path, name, TRAINER)
    write(tmp_path, "trainer_state.json", STATE)
    write(tmp_path, "checkpoint-10/trainer_state.json", STATE)
    write(tmp_path, "other.json", {"a": 1})
    files, left_out = read_files(tmp_path, None, {})
    assert [file.path.name for file in files] == ["all_results.json"]
    assert len(left_out) == 4
    assert any("checkpoint-10" in line and "in the middle of a run" in line for line in left_out)
    assert any("other.json: no format" in line for line in left_out)


def test_a_state_is_repeated_by_the_results_of_its_training(tmp_path: Path) -> None:
    write(tmp_path, "train_results.json", TRAINER)
    write(tmp_path, "trainer_state.json", STATE)
    ((file,), (left_out,)) = read_files(tmp_path, None, {})
    assert file.path.name == "train_results.json"
    assert "trainer_state.json: train_results.json beside it is imported" in left_out


def test_a_nan_is_no_number_and_says_so(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "all_results.json", {**TRAINER, "train_loss": float("nan")})
    (loss,) = (one for one in result.metrics if one.name == "mean_loss")
    assert (loss.value, loss.reason) == (None, "the file has NaN")


def test_tokens_of_the_csv_are_made_global_and_memory_becomes_bytes(tmp_path: Path) -> None:
    results = imported(tmp_path, "benchmarks.csv", CSV)
    found = figures(results[0])
    assert found["tokens_per_second_per_device"] == (2698.11, "1/s", "device")
    assert found["tokens_per_second"] == (2 * 2698.11, "1/s", "global")
    assert found["samples_per_second"] == (1.317, "1/s", "global")
    assert found["peak_driver_memory_bytes"] == (44706 * 1024**2, "bytes", "device")
    assert found["peak_memory_bytes"] == (36762859520, "bytes", "device")
    assert "train_tokens_per_second is that of one device" in corrections(results[0])
    assert "nvidia_mem_reserved is in MiB" in corrections(results[0])
    # The tokens of a sample agree only so: 4,096 of them.
    tokens, samples = found["tokens_per_second"][0], found["samples_per_second"][0]
    assert tokens / samples == pytest.approx(4096, rel=0.001)


def test_settings_of_the_csv_are_those_that_it_states(tmp_path: Path) -> None:
    gptq = imported(tmp_path, "benchmarks.csv", CSV)[2]
    scenario = gptq.experiment.scenario
    assert gptq.experiment.stack.name == "accelerated-peft-autogptq"
    assert scenario.model.id == "TheBloke/Mistral-7B-v0.1-GPTQ"
    assert scenario.train.precision == "fp16-autocast"
    assert scenario.adapter.options["target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert "train.learning_rate" in gptq.provenance.stated
    assert "data.sequence_length" not in gptq.provenance.stated


def test_a_blank_line_is_a_failure_whose_reason_is_marked_as_inferred(tmp_path: Path) -> None:
    results = imported(tmp_path, "benchmarks.csv", CSV)
    assert [one.status for one in results] == [Status.OK, Status.FAILED, Status.OK, Status.FAILED]
    assert results[1].reasons == ("inferred, the file states no reason: it left no figure",)


def test_an_error_that_the_csv_states_is_not_marked_as_inferred(tmp_path: Path) -> None:
    text = (
        "error_messages,model_name_or_path,num_gpus,gpu_device_name,mem_nvidia_mem_reserved,"
        "train_runtime\n"
        "torch.OutOfMemoryError: CUDA out of memory,a,1,,,\n"
        "ValueError: no such model,b,1,,,\n"
        ",c,1,NVIDIA A100-SXM4-80GB,81043.0,\n"
        ",d,1,NVIDIA A100-SXM4-80GB,40000.0,\n"
    )
    results = imported(tmp_path, "raw_summary.csv", text)
    assert [one.status.value for one in results] == ["oom", "failed", "failed", "failed"]
    assert not any("inferred" in one.reasons[0] for one in results[:2])
    assert "99% of the memory of NVIDIA A100-SXM4-80GB" in results[2].reasons[0]
    assert "out of memory" not in results[3].reasons[0]


def test_optimum_s_training_throughput_is_divided_by_the_steps(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "benchmark.json", OPTIMUM)
    found = figures(result)
    assert found["samples_per_second_per_device"] == (2 * 3 / 0.5, "1/s", "device")
    assert found["samples_per_second"] == (2 * 2 * 3 / 0.5, "1/s", "global")
    assert "1,200 samples/s is inflated by the number of steps" in corrections(result)
    assert "divided by 100" in corrections(result)
    assert found["peak_memory_bytes"] == (2_000_500_000, "bytes", "device")
    assert result.provenance.series == {"step_seconds": (0.5, 0.5)}
    assert result.experiment.scenario.train.global_batch_size == 12
    assert result.provenance.machine == "NVIDIA A10G"


def test_an_inflated_throughput_without_a_number_of_steps_is_left_out(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "benchmark_report.json", OPTIMUM["report"])
    assert "samples_per_second" not in figures(result)
    assert "1,200 samples/s was left out" in corrections(result)
    one = deepcopy(OPTIMUM)
    one["config"]["launcher"] = {"name": "process"}
    del one["config"]["scenario"]["max_steps"]
    (counted,) = imported(tmp_path / "one", "benchmark.json", one)
    assert figures(counted)["samples_per_second"][0] == 600  # the two times that are there


def test_a_report_beside_its_configuration_is_read_with_it(tmp_path: Path) -> None:
    write(tmp_path, "benchmark_config.json", OPTIMUM["config"])
    (result,) = imported(tmp_path, "benchmark_report.json", OPTIMUM["report"])
    assert result.experiment.scenario.model.id == "gpt2"
    assert figures(result)["samples_per_second"][0] == 24


def test_an_inference_report_has_a_row_for_each_part_as_it_stands(tmp_path: Path) -> None:
    part = {**OPTIMUM["report"]["train"], "throughput": {"unit": "tokens/s", "value": 900.0}}
    report = {"prefill": part, "decode": part}
    results = imported(tmp_path, "benchmark.json", {"config": {}, "report": report})
    assert [one.experiment.stack.name for one in results] == ["prefill", "decode"]
    assert figures(results[0])["tokens_per_second"][0] == 900
    assert "inflated" not in corrections(results[0])


def test_pytest_benchmark_keeps_its_rounds_as_raw_numbers(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "0001.json", PYTEST)
    assert result.experiment.scenario.name == "gpt2"
    assert result.experiment.stack.name == "inductor"
    assert figures(result)["median_seconds_per_call"] == (0.002, "seconds", "global")
    assert result.provenance.series == {"seconds_per_call": (0.001, 0.002, 0.003)}
    assert result.provenance.machine == "bench-2, a fast CPU, Linux"
    assert result.seconds == pytest.approx(0.06)
    assert result.started_at.startswith("2025-03-02T12:34:56")


DATES = {
    "2025-03-02T14:34:56.789+02:00": ("2025-03-02T12:34:56Z", ""),
    "2025-03-02T12:34:56Z": ("2025-03-02T12:34:56Z", ""),
    "2025-03-02 12:34:56": ("2025-03-02T12:34:56Z", "names no time zone: it is taken for UTC"),
    "zzzz": ("1970-01-01T00:00:00Z", "date 'zzzz' cannot be read"),
    "0001-01-01T00:00:00+23:00": ("1970-01-01T00:00:00Z", "cannot be read"),
}


@pytest.mark.parametrize("date", DATES)
def test_a_date_is_stored_as_utc_or_named(date: str, tmp_path: Path) -> None:
    expected, correction = DATES[date]
    for key, document in (("datetime", PYTEST), ("timestamp", IPFS)):
        result, *_ = imported(tmp_path, "file.json", {**document, key: date})
        assert result.started_at == expected
        assert correction in corrections(result)
        assert bool(correction) == ("the file's date" in corrections(result))


def test_mlperf_s_log_gives_time_to_train_losses_and_its_ending(tmp_path: Path) -> None:
    (result,) = imported(tmp_path, "result_0.txt", MLLOG)
    found = figures(result)
    assert found["time_to_train_seconds"] == (100.0, "seconds", "global")
    assert found["samples_per_second"] == (12.5, "1/s", "global")
    assert found["last_loss"][0] == 1.2
    assert found["eval_accuracy"][0] == 0.92
    assert result.provenance.series["train_loss"] == (1.4, 1.2)
    assert result.provenance.series["train_loss_step"] == (8, 16)
    assert result.experiment.scenario.data.sequence_length == 8192
    assert result.experiment.stack.name == "SomeOrg"
    assert result.started_at == "2023-11-14T22:13:50Z"


def test_sizes_of_a_log_that_do_not_fit_are_left_out_in_words(tmp_path: Path) -> None:
    extra = event("gradient_accumulation_steps", 3, 1_700_000_000_000)
    (result,) = imported(tmp_path, "a.log", f"{MLLOG}\n{extra}")
    assert "gradient_accumulation was left out" in corrections(result)
    assert result.experiment.scenario.train.global_batch_size == 8
    assert "train.gradient_accumulation" not in result.provenance.stated


def test_a_log_that_is_cut_off_or_aborted_has_failed(tmp_path: Path) -> None:
    lines = MLLOG.splitlines()
    (cut,) = imported(tmp_path, "cut.log", "\n".join(lines[:-1]))
    assert (cut.status, cut.reasons[0][:8]) == (Status.FAILED, "inferred")
    aborted = event("run_stop", None, 1_700_000_130_000, status="aborted")
    (stopped,) = imported(tmp_path, "aborted.log", "\n".join([*lines[:-1], aborted]))
    assert stopped.reasons == ("run_stop states the status 'aborted'",)


def test_the_json_tree_becomes_a_row_for_each_leaf(tmp_path: Path) -> None:
    ok, oom, failed = imported(tmp_path, "training.json", IPFS)
    found = figures(ok)
    assert found["samples_per_second"] == (39.06, "1/s", "global")
    assert found["mean_step_seconds"] == (0.0256, "seconds", "global")
    assert found["mean_memory_of_unstated_unit"] == (1234.5, "unstated", "global")
    assert "min 2.3456 is above its max 1.2345" in corrections(ok)
    assert "performance_summary was left out" in corrections(ok)
    assert ok.experiment.scenario.train.learning_rate == 1e-5
    assert ok.experiment.scenario.optimizer.use == "adam"
    assert oom.status is Status.OOM
    assert oom.experiment.scenario.train.micro_batch_size == 64
    assert (failed.status, failed.experiment.stack.name) == (
        Status.FAILED,
        "no-configuration-" + (short_name("no configuration").rpartition("-")[2]),
    )


def test_a_setting_of_the_user_is_marked_and_changes_nothing_that_is_stated(
    tmp_path: Path,
) -> None:
    (result,) = imported(tmp_path, "all_results.json", TRAINER, **{"model.id": "mistral-7b"})
    assert result.experiment.scenario.model.id == "mistral-7b"
    assert "model.id = 'mistral-7b' was given by the user" in corrections(result)
    with pytest.raises(ImportFileError, match="what a file states is not changed"):
        imported(tmp_path, "benchmarks.csv", CSV, **{"resources.devices": 8})
    with pytest.raises(ImportFileError, match=r"resources.devices: .*given: 0"):
        imported(tmp_path, "all_results.json", TRAINER, **{"resources.devices": 0})


def test_identities_are_of_the_file_and_the_row_alone(tmp_path: Path) -> None:
    one = imported(tmp_path, "a.csv", CSV)
    other = imported(tmp_path, "b.csv", CSV + "\n")
    ids = [result.experiment.id for result in (*one, *other)]
    assert len(set(ids)) == len(ids)
    assert [result.experiment.id for result in imported(tmp_path, "a.csv", CSV)] == ids[: len(one)]


BROKEN: dict[str, tuple[str, str | dict[str, Any], str]] = {
    "no format": ("a.json", {"a": 1}, "is none of .*--format names one"),
    "not JSON": ("a.json", "{", "is none of"),
    "a tree that is none": (
        "a.json",
        {"system_info": {}, "benchmarks": {"family": {"model": [1]}}},
        "begins as JSON tree of .*, but is not",
    ),
    "a broken line of the log": ("a.log", ":::MLLOG {nonsense}", "a.log:1: .*has a key"),
    "a benchmark without statistics": (
        "a.json",
        {"machine_info": {}, "benchmarks": [{"name": "a", "fullname": "a"}]},
        "but is not: KeyError",
    ),
    "rounds that are no list": (
        "a.json",
        {"machine_info": {}, "benchmarks": [{"name": "a", "fullname": "a", "stats": {"data": 5}}]},
        "but is not: .*stats.data is 5, and no list of numbers",
    ),
    "latencies that are no list": (
        "benchmark.json",
        {**OPTIMUM, "report": {"train": {"latency": {"values": "slow"}, "throughput": {}}}},
        'but is not: .*latency.values is "slow", and no list of numbers',
    ),
    "no row": ("a.json", {"machine_info": {}, "benchmarks": []}, "holds no row"),
    "a number that is none": (
        "benchmark.json",
        {**OPTIMUM, "config": {"launcher": {"nproc_per_node": 2, "nnodes": "\u00b2"}}},
        "begins as benchmark.json of .*, but is not",
    ),
    "a line that no spreadsheet writes": ("a.csv", "x" * 200_000, "is none of"),
    "a cell that is too long": (
        "a.csv",
        f"model_name_or_path,train_runtime\n{'x' * 200_000},1\n",
        "begins as CSV of .*, but is not",
    ),
    "too many cells": (
        "a.csv",
        "model_name_or_path,train_runtime\na,1,2\n",
        "line 2 has more cells than columns",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_refused_by_name(case: str, tmp_path: Path) -> None:
    name, content, message = BROKEN[case]
    with pytest.raises(ImportFileError, match=message) as error:
        imported(tmp_path, name, content)
    assert str(tmp_path) in str(error.value)


def test_limits_are_kept_and_nothing_is_cut_in_silence(tmp_path: Path) -> None:
    many = deepcopy(PYTEST)
    many["benchmarks"][0]["stats"]["data"] = [0.001] * (MAXIMUM_SAMPLES + 1)
    (result,) = imported(tmp_path, "many.json", many)
    assert result.provenance.series == {}
    assert "raw numbers were left out" in corrections(result)
    with pytest.raises(ImportFileError, match="10,001 rows; at most 10,000"):
        imported(tmp_path, "a.csv", CSV + CSV.splitlines(True)[1] * (MAXIMUM_ROWS - 3))


@pytest.mark.parametrize(
    ("name", "start", "value"),
    [
        ("a.json", '{"machine_info": {}, "benchmarks": [', "[],"),
        ("a.csv", "model_name_or_path,train_runtime\n", ","),
        ("a.log", ":::MLLOG {}", "\n"),
    ],
)
def test_a_file_of_more_values_than_fit_the_memory_is_not_parsed(
    tmp_path: Path, name: str, start: str, value: str
) -> None:
    with pytest.raises(ImportFileError, match=f"{name}: more than 1,000,000 values, the limit of"):
        imported(tmp_path, name, start + value * (MAXIMUM_VALUES + 1))


@pytest.mark.parametrize("name", ["", "..", "-x", "é", "a/b c", "x" * 200, "\x1b[31m"])
def test_any_text_becomes_a_name_that_is_allowed(name: str, tmp_path: Path) -> None:
    content = json.loads(json.dumps(PYTEST))
    content["benchmarks"][0]["group"] = name
    content["benchmarks"][0]["param"] = name
    (result,) = imported(tmp_path, "a.json", content)
    assert result.experiment.scenario.name
