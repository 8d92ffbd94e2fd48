"""Environment variables: which a scenario may set, and which are recorded."""

from __future__ import annotations

import pytest

from accel_bench.errors import ScenarioError
from accel_bench.scenario.environment import SWITCHES, check_environment, recorded


@pytest.mark.parametrize(
    "name",
    [
        "OMP_NUM_THREADS",
        "PYTORCH_ALLOC_CONF",
        "CUBLAS_WORKSPACE_CONFIG",
        "NCCL_DEBUG",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
        "CUDA_LAUNCH_BLOCKING",
    ],
)
def test_what_changes_speed_may_be_set(name: str) -> None:
    check_environment({name: "1"}, lambda _: "here", False)


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PATH",
        "HOME",
        "HF_TOKEN",
        "omp_num_threads",
        "CUDA_INJECTION64_PATH",
        "TORCH_DEVICE_BACKEND_AUTOLOAD",
        "TRITON_LIBCUDA_PATH",
        "TRITON_PTXAS_PATH",
        "TRITON_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "CUDA_HOME",
        "OMP_TOOL_LIBRARIES",
        "NCCL_NET_PLUGIN",
        "NCCL_DEBUG_FILE",
        # These ran a program, imported a module, or wrote a file while names went by prefix.
        "TORCH_ADDR2LINE_BINARY",
        "TORCH_PYTHON_NATIVE_USER_GRAPH_ORDER_FN",
        "TORCH_LOGS",
        "TORCH_LOGS_OUT",
        "TORCH_TRACE",
        "TORCHINDUCTOR_REDIS_URL",
        "PYTORCH_TUNABLEOP_FILENAME",
        "NCCL_COMM_ID",
        "TORCH_OF_A_LATER_RELEASE",
    ],
)
def test_what_names_code_or_places_or_carries_secrets_may_not(name: str) -> None:
    with pytest.raises(ScenarioError, match=rf"here: a scenario may not set {name}; .*--allow-env"):
        check_environment({name: "x"}, lambda _: "here", False)
    check_environment({name: "x"}, lambda _: "here", True)


def test_no_variable_that_may_be_set_sounds_like_a_place_a_program_or_an_address() -> None:
    words = (
        "ADDR BINARY CACHE_DIR DIR DUMP FILE FN HOME HOOK HOST LOG LOGS OUT PATH PLUGIN TRACE URL"
    )
    suspects = {name for name in SWITCHES if set(name.split("_")) & set(words.split())}
    assert not suspects


@pytest.mark.parametrize(
    ("name", "value"), [("", "x"), ("A=B", "x"), ("OMP\0X", "x"), ("OMP_X", "a\0b")]
)
def test_what_no_process_can_be_given_is_refused_even_when_all_is_allowed(
    name: str, value: str
) -> None:
    with pytest.raises(ScenarioError, match="is not the name of"):
        check_environment({name: value}, lambda _: "here", True)


def test_what_is_recorded_holds_no_secret_and_is_sorted() -> None:
    environment = {"OMP_NUM_THREADS": "2", "HF_TOKEN": "secret", "CUDA_VISIBLE_DEVICES": "0"}
    assert list(recorded(environment)) == ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"]


@pytest.mark.parametrize("value", ["1000000000", "2,1000000000", "9" * 40])
def test_a_thousand_million_threads_are_refused(value: str) -> None:
    with pytest.raises(ScenarioError, match=r"here: OMP_NUM_THREADS is .*; the limit is 4096"):
        check_environment({"OMP_NUM_THREADS": value}, lambda _: "here", False)
    check_environment({"OMP_NUM_THREADS": "2,4"}, lambda _: "here", False)
