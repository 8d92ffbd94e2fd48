"""The simulating process may hang, or write invalid responses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from accel_bench_advise.estimates.simulator import Simulator
from analysis_factory import make_experiment

from accel_bench.errors import AccelBenchError


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import time; time.sleep(600)", "the simulation was ended after"),
        ("print('a banner', flush=True)", "the simulation has answered 'a banner'"),
        ("raise SystemExit('no memory')", "the simulation has ended: SystemExit: no memory"),
    ],
)
def test_a_process_without_an_answer_is_an_error(
    code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    hangs = "sleep" in code
    with closing(Simulator(timeout_seconds=0.3 if hangs else 60)) as simulator:
        for _ in range(2):  # The second question starts a process of its own.
            with pytest.raises(AccelBenchError) as caught:
                simulator.footprint(make_experiment(), "cpu")
            assert problem in str(caught.value)
