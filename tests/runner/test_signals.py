"""Ctrl-C and SIGTERM wait until a result is kept."""

from __future__ import annotations

import signal
import threading

import pytest

from accel_bench.runner.supervise import deferred_signals


def test_ctrl_c_in_the_block_is_delivered_after_it() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("kept")
    assert done == ["kept"]


def test_without_a_signal_nothing_happens_and_handlers_are_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with deferred_signals():
        assert signal.getsignal(signal.SIGINT) is not before[0]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_error_in_the_block_comes_through() -> None:
    with pytest.raises(ValueError, match="disk"), deferred_signals():
        raise ValueError("disk")


def test_in_another_thread_it_does_nothing() -> None:
    done: list[str] = []

    def work() -> None:
        with deferred_signals():
            done.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["done"]
