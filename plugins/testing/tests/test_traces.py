"""What a plugin leaves running or lying about, and what it replaces for the window, is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
from accel_bench_testing import traces
from fault_plugins.faults import source

from accel_bench.machine.scheduling import running_children

from .checking import NULL, check, violations


def test_what_outlives_a_run_is_named_with_its_module(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    acting = (
        "import json, subprocess, threading, time\n"
        "        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "        subprocess.Popen(['sleep', '600'])\n"
        f"        open({str(outside)!r}, 'w').close()\n"
        "        was = json.dumps\n"
        "        json.dumps = lambda *a, **k: was(*a, **k)\n"
    )
    found = violations(tmp_path, source(acting=acting), scenario=NULL)
    assert {text.partition(": ")[0] for text in found} == {"undone at the end"}
    module = "accel_bench_test_what_outlives"
    for what in (
        "the thread 'Thread-",
        "the process 'sleep 600' that ",
        f"has written {outside}, which is outside of run.folder",
        "json.dumps was replaced by ",
    ):
        assert any(what in text and module in text for text in found), what


def test_what_a_plugin_ends_and_removes_itself_passes(tmp_path: Path) -> None:
    acting = (
        "import subprocess, tempfile, threading\n"
        "        thread = threading.Thread(target=int)\n"
        "        thread.start(); thread.join()\n"
        "        subprocess.run(['true'])\n"
        "        with tempfile.NamedTemporaryFile('w') as file: file.write('x')\n"
        "        (run.folder / 'kept.txt').write_text('x')"
    )
    assert check(tmp_path, source(acting=acting), scenario=NULL).ran


def test_a_process_that_ends_while_it_is_looked_at_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ended(process: psutil.Process) -> str:
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "status", ended)
    with subprocess.Popen(["sleep", "600"]) as gone:
        assert list(running_children()) == []
        gone.kill()
    assert traces._command(gone.pid) == str(gone.pid)


def test_the_cache_of_a_run_is_no_file_left_behind_and_not_the_author_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCEL_BENCH_CACHE", str(tmp_path / "authors"))
    acting = "(run.cache('it', 1, str) / 'x').write_text('x')"
    assert check(tmp_path, source(acting=acting), scenario=NULL).ran
    assert not (tmp_path / "authors").exists()


def test_a_clock_that_is_replaced_for_the_window_alone_is_named(tmp_path: Path) -> None:
    acting = "import time; was = self.was = time.perf_counter; time.perf_counter = lambda: was()"
    closing = "import time; time.perf_counter = self.was or time.perf_counter"
    text = source(making="self.was = None", acting=acting, closing=closing)
    (found,) = violations(tmp_path, text, scenario=NULL)
    assert found.startswith("what measures: time.perf_counter was replaced by ")
    assert "while the window was measured; what measures must be left alone" in found


def test_evidence_and_output_beyond_their_limits_are_named(tmp_path: Path) -> None:
    text = source(acting="run.logger.info('x' * 2_000_000)", evidence="{'all': [*range(10**5)]}")
    output, evidence = violations(tmp_path, text, scenario=NULL)
    assert output.startswith("output: a run writes to its output and log 2.0 MB, and 0.3 MB is")
    assert evidence.startswith("output: a run shows as evidence 0.7 MB, and 0.1 MB is much")


def test_a_plugin_that_conflicts_with_itself_is_named(tmp_path: Path) -> None:
    text = source(declared="conflicts = frozenset({'it'}); after = ('it',)")
    found = violations(tmp_path, text, scenario=NULL)
    assert found == [
        "declarations: It.conflicts names 'it' itself; take it out",
        "declarations: It.after names 'it' itself; take it out",
    ]


def test_a_result_that_json_does_not_hold_is_named(tmp_path: Path) -> None:
    metric = "name='m', value=float('nan'), unit='u', scope='global', better='lower'"
    more = (
        "@hookimpl\n    def observe_ranks(self, job):\n        return self\n\n"
        "    def finish(self, results):\n        from accel_bench import Metric\n"
        f"        return [Metric.model_construct({metric})]"
    )
    (found,) = violations(tmp_path, source(more=more), scenario=NULL)
    assert found.startswith("runs: ")
    assert "failed in observe_ranks: gave what cannot be stored: m.value" in found
