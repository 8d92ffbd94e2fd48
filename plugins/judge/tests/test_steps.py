"""Cheats are refused, or gain nothing; honest rewrites pass. docs/judge.md lists all of them."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from accel_bench.errors import InvalidRunError

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "judge.md"
CHEATS = sorted((HERE / "cheats").glob("*.py"))
HONEST = sorted((HERE / "honest").glob("*.py"))
TWICE = ("keeps_results_on_disk",)
"""Cheats that are honest in their first run."""

WITHOUT_GAIN = ("patches_clocks",)
"""Cheats that train as the reference does, and change nothing that the judge reads."""

REASONS = {
    "loss, update": r"the (loss|update) of ",
    # A second answer that comes late is taken for that to the next step.
    "answers": r"answered what nobody had asked|the (loss|update) of ",
    "processes": "processes that the step has started",
    "confined": r"PermissionError|Operation not permitted",
    "no gain": "",
    "ended": "the process of the step ended",
}
"""Pattern of each reason that the page's table names."""


def rows_of_the_page() -> dict[str, str]:
    """Return the reason of each cheat that the page lists."""
    return dict(re.findall(r"^\| `(\w+)` \| .* \| ([a-z, ]+) \|$", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    "path", [path for path in CHEATS if path.stem not in WITHOUT_GAIN], ids=lambda path: path.stem
)
def test_a_cheat_is_refused_for_the_reason_on_the_page(path: Path, take_steps: Any) -> None:
    reason = rows_of_the_page()[path.stem]
    # A process beside the step has had some of the CPU by then, on a busy machine too.
    more = {"steps": 60} if reason == "processes" else {}
    if path.stem in TWICE:
        take_steps(path).judge()
    with pytest.raises(InvalidRunError) as refused:
        take_steps(path, **more).judge()
    assert re.search(REASONS[reason], str(refused.value))


def test_the_page_lists_every_cheat_and_every_rewrite() -> None:
    assert set(rows_of_the_page()) == {path.stem for path in CHEATS}
    assert all(f"`{path.stem}`" in PAGE.read_text() for path in HONEST)
    assert len(CHEATS) >= 40 and len(HONEST) >= 20


def test_clocks_of_the_step_are_not_read(take_steps: Any) -> None:
    before = time.monotonic()
    trial = take_steps(HERE / "cheats" / "patches_clocks.py")
    assert time.monotonic() - before >= 0.02 * len(trial.steps)
    assert trial.judge().training == "bitwise equal"


@pytest.mark.parametrize(
    "path", [path for path in HONEST if path.stem != "compiled"], ids=lambda path: path.stem
)
def test_an_honest_rewrite_passes(path: Path, take_steps: Any) -> None:
    assert take_steps(path).judge().training in ("bitwise equal", "equivalent")


@pytest.mark.release
def test_a_compiled_model_passes(take_steps: Any) -> None:
    assert take_steps(HERE / "honest" / "compiled.py").judge().steps


def test_nothing_is_computed_between_steps(nursery: Any, tmp_path: Path) -> None:
    from accel_bench_judge.trial_impl import Trial

    counting = tmp_path / "counting.py"
    counting.write_text(
        "import reference, threading, torch\n"
        "seen = [0]\n"
        "def count():\n"
        "    while True:\n"
        "        seen[0] += 1\n"
        "def prepare(model, optimizer):\n"
        "    threading.Thread(target=count, daemon=True).start()\n"
        "def step(model, optimizer, batch):\n"
        "    return float(seen[0])\n"
    )
    reference = HERE / "steps" / "reference.py"
    trial = Trial(str(reference), str(counting), tmp_path / "cache", start=nursery)
    try:
        losses = []
        for pause in (0.0, 0.5):
            time.sleep(pause)
            trial.begin()
            losses.append(trial.keep(trial.ask()))
        assert losses[1] > 0
        stopped = trial._subject.pid
        used = time.clock_gettime((~stopped << 3) | 2)
        time.sleep(0.2)
        assert time.clock_gettime((~stopped << 3) | 2) == used
    finally:
        trial.end()


def test_what_a_step_has_started_ends_with_it(take_steps: Any, tmp_path: Path) -> None:
    starting = tmp_path / "starting.py"
    starting.write_text(
        "import os, reference, time\n"
        "def prepare(model, optimizer):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        time.sleep(600)\n"
        "        os._exit(0)\n"
        "def step(model, optimizer, batch):\n"
        "    return reference.step(model, optimizer, batch)\n"
    )
    trial = take_steps(starting)
    assert trial.judge().training == "bitwise equal"
    assert not trial.alive()


def test_fewer_flops_are_refused_unless_they_are_allowed(take_steps: Any, tmp_path: Path) -> None:
    reference = tmp_path / "wasteful.py"
    text = (HERE / "steps" / "reference.py").read_text()
    reference.write_text(
        text.replace("    return update(", "    model(batch['words'])\n    return update(")
    )
    lean = tmp_path / "lean.py"
    lean.write_text(
        "import wasteful\n"
        "def step(model, optimizer, batch):\n"
        "    loss = wasteful.loss_of(model(batch['words']), batch['labels'])\n"
        "    return wasteful.update(optimizer, loss)\n"
    )
    with pytest.raises(InvalidRunError, match="FLOPs"):
        take_steps(lean, reference).judge()
    assert take_steps(lean, reference, fewer_flops=True).judge().training == "bitwise equal"
