"""What a worker's exception means, in the words of torch and of others."""

from __future__ import annotations

import errno

import pytest

from accel_bench.errors import HookError, InvalidRunError, WorkerError
from accel_bench.machine.out_of_memory import out_of_memory
from accel_bench.result import Status
from accel_bench.worker.failure import failure_of, reasons_of, status_of

GPU_TEXT = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of "
    "which 1.50 GiB is free. Process 1 has 77.5 GiB memory in use."
)
CPU_TEXT = (
    "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 4398046511104 bytes. Error code 12 (Cannot allocate memory)"
)


class OutOfMemoryError(RuntimeError):
    """Called like torch's."""


def caused(error: Exception, cause: Exception) -> Exception:
    """An exception that hides another."""
    error.__cause__ = cause
    return error


def while_handling(error: Exception, context: Exception) -> Exception:
    """An exception that came up while another one was handled."""
    error.__context__ = context
    return error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OutOfMemoryError("full"),
        type("Aliased", (OutOfMemoryError,), {})("full"),
        RuntimeError(GPU_TEXT),
        RuntimeError(CPU_TEXT),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        caused(ValueError("no kernel"), caused(KeyError("x"), OutOfMemoryError("full"))),
        while_handling(ValueError("no kernel"), MemoryError()),
        caused(HookError("a", "b", "load_model", "full"), MemoryError()),
    ],
)
def test_out_of_memory_is_found_wherever_it_hides(error: Exception) -> None:
    assert status_of(error) is Status.OOM


def test_an_error_that_only_speaks_of_memory_is_none() -> None:
    assert out_of_memory(ValueError("this option is out of memory of everybody")) is None


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert status_of(first) is Status.FAILED


@pytest.mark.parametrize(
    ("text", "asked", "free"),
    [
        (GPU_TEXT, 20 * 2**20, 3 * 2**29),
        ("CUDA out of memory. Tried to allocate 512 bytes.", 512, None),
        ("out of memory", None, None),
    ],
)
def test_bytes_asked_and_free_come_from_torch_s_text(
    text: str, asked: int | None, free: int | None
) -> None:
    found = failure_of(caused(ValueError("hidden"), OutOfMemoryError(text)))
    assert (found.bytes_asked, found.bytes_free) == (asked, free)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidRunError(["no gradient"]), Status.INVALID),
        (HookError("a", "b", "load_model", "it broke"), Status.PLUGIN_ERROR),
        (KeyboardInterrupt("signal 15"), Status.INTERRUPTED),
        (OSError(errno.ENOSPC, "No space left on device"), Status.INFRA_ERROR),
        (OSError(errno.ENOENT, "No such file"), Status.FAILED),
        (RuntimeError("CUDA error: device-side assert triggered"), Status.FAILED),
        (WorkerError("something"), Status.FAILED),
        (SystemExit(3), Status.FAILED),
    ],
)
def test_each_error_has_one_status(error: BaseException, status: Status) -> None:
    assert status_of(error) is status


def test_reasons_are_one_line_each() -> None:
    assert reasons_of(ValueError("first\nsecond")) == ("ValueError: first",)
    assert reasons_of(InvalidRunError(["one", "two"])) == ("one", "two")


def test_out_of_memory_is_told_in_a_sentence() -> None:
    said = "out of memory in warm-up: asked 20.0 MiB, 1.50 GiB free of 79.1 GiB"
    assert reasons_of(OutOfMemoryError(GPU_TEXT), "warm-up") == (said,)


def test_what_hides_out_of_memory_is_told_too() -> None:
    hidden = caused(HookError("a", "b", "load_model", "full"), OutOfMemoryError(GPU_TEXT))
    said = reasons_of(hidden, "load_model")
    assert said[0].startswith("out of memory in load_model: asked 20.0 MiB")
    assert said[1:] == ("plugin 'a' (b) failed in load_model: full",)


def test_the_part_of_a_step_is_kept_for_any_error() -> None:
    import torch

    layer = torch.nn.Linear(4, 4)
    with pytest.raises(RuntimeError) as caught:
        layer(torch.ones(3))
    assert failure_of(caught.value, "window").step_part == "forward"
    assert failure_of(caught.value, "load_model").step_part is None


def test_what_a_hook_raised_is_described_with_whose_it_is() -> None:
    try:
        raise HookError("faulty", "a-distribution", "load_model", "it broke") from ValueError("x")
    except HookError as error:
        found = failure_of(error)
    assert (found.plugin, found.hook) == ("faulty", "load_model")
    assert "ValueError: x" in found.traceback
    assert found.bytes_asked is None


def test_an_endless_message_is_cut() -> None:
    found = failure_of(ValueError("x" * 10**6))
    assert len(found.message) + len(found.traceback) <= 20_000
