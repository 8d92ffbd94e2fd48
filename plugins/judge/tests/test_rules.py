"""The rules: honest rewrites pass, also beside a reference in bfloat16, and each limit holds."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest

from accel_bench.errors import InvalidRunError

HERE = Path(__file__).parent
REFERENCE = HERE / "steps" / "reference.py"
HONEST = sorted((HERE / "honest").glob("*.py"))
REFERENCES = {"micro_batches_in_float64": HERE / "steps" / "double" / "reference.py"}
UNCOUNTED = ("threads",)
"""Rewrites whose FLOPs torch does not count, which `--fewer-flops` allows."""


@pytest.mark.parametrize(
    "path", [path for path in HONEST if path.stem != "compiled"], ids=lambda path: path.stem
)
def test_an_honest_rewrite_passes(path: Path, take_steps: Any) -> None:
    reference = REFERENCES.get(path.stem, REFERENCE)
    trial = take_steps(path, reference, fewer_flops=path.stem in UNCOUNTED)
    assert trial.judge().training in ("bitwise equal", "equivalent")


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
    assert not trial._subject.alive()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("import sys\nsys.exit(3)", "SystemExit in line 2 of wrong.py: 3"),
        ("import nothing_of_this_name", "ModuleNotFoundError in line 1 of wrong.py"),
        ("def prepare(model, optimizer): return model", "`prepare` returned a Model, not"),
        ("def step(*_): pass", "`step` did not return a loss"),
        ("def prepare(model, _): del model.head", "no parameter or buffer 'head.weight'"),
        ("def step(*_): raise ValueError('\\udc80')", "ValueError in line 1 of wrong.py"),
    ],
)
def test_an_error_of_a_step_names_the_line_and_what_is_wrong(
    body: str, message: str, take_steps: Any, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(f"{body}\n\n" + ("" if "step" in body else "def step(*_): return 0.0\n"))
    with pytest.raises(InvalidRunError, match=message):
        take_steps(wrong)


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


@pytest.fixture
def rounded(tmp_path: Path) -> Path:
    """Return a reference that computes in bfloat16, by autocast."""
    text = REFERENCE.read_text().replace(
        "        return self.head(self.body(words))\n",
        '        with torch.autocast("cpu", torch.bfloat16):\n'
        "            logits = self.head(self.body(words))\n"
        "        return logits.to(self.head.weight.dtype)\n",
    )
    path = tmp_path / "reference.py"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "name", ["accumulated", "einsum_heads", "fused_optimizer", "plain", "row_by_row", "sdpa"]
)
def test_beside_a_bfloat16_reference_an_honest_rewrite_passes(
    name: str, rounded: Path, take_steps: Any
) -> None:
    assert take_steps(HERE / "honest" / f"{name}.py", rounded).judge().allowed > 0.01


@pytest.mark.parametrize(
    "name",
    [
        *("drops_one_token", "freezes_a_bias", "half_the_rows", "half_the_tokens"),
        *("honest_at_first", "low_rank_gradients", "no_weight_decay", "one_late_shortcut"),
        *("reuses_gradients", "skips_a_block", "sparse_gradients", "stale_batch"),
    ],
)
def test_beside_a_bfloat16_reference_a_cheat_is_refused(
    name: str, rounded: Path, take_steps: Any
) -> None:
    with pytest.raises(InvalidRunError, match=r"the (loss|update) of "):
        take_steps(HERE / "cheats" / f"{name}.py", rounded).judge()


@pytest.mark.parametrize(
    ("constant", "factor"),
    [
        ("torch.full((LENGTH, LENGTH), -torch.inf).triu(1)", "constant[0, 0].exp()"),
        ("torch.polar(torch.ones(4), torch.arange(4.0))", "constant.imag.max()"),
    ],
)
def test_a_reference_may_have_infinite_and_complex_constants(
    constant: str, factor: str, take_steps: Any, tmp_path: Path
) -> None:
    text = REFERENCE.read_text()
    text = text.replace(
        "self.head = nn", f"self.register_buffer('constant', {constant})\n        self.head = nn"
    )
    text = text.replace("self.body(words))", f"self.body(words)) * self.{factor}")
    path = tmp_path / "reference.py"
    path.write_text(text)
    assert take_steps(HERE / "honest" / "plain.py", path).judge().training == "bitwise equal"


@pytest.mark.parametrize("rounding", [0.0, 1e-6, 1e-3, 0.01, 0.1, 0.25])
def test_a_step_without_any_update_is_beyond_each_limit(rounding: float) -> None:
    from accel_bench_judge.comparison_impl import WHOLE_FLOOR, allowance

    assert rounding <= allowance(rounding, WHOLE_FLOOR) < 0.6


def test_turned_signs_are_allowed_where_chance_turns_some() -> None:
    from accel_bench_judge.comparison_impl import flips

    assert flips(8e-4, 64) == 0.0  # float32 turns none
    assert flips(0.1, 32) > 2 / 32**0.5  # bfloat16 may turn one of 32
    assert flips(0.1, 10**6) == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    "drawn", ["torch.zeros(4, 17, dtype=torch.int64)", "torch.randint(WORDS, (ROWS, 17)) + next(N)"]
)
def test_batches_that_a_step_could_know_are_refused(
    drawn: str, take_steps: Any, tmp_path: Path
) -> None:
    call = "torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)"
    text = REFERENCE.read_text().replace(call, drawn)
    path = tmp_path / "reference.py"
    path.write_text(f"{text}\n\nimport itertools\n\nN = itertools.count()\n")
    with pytest.raises(InvalidRunError, match="make_batch draws from something else"):
        take_steps(HERE / "honest" / "plain.py", path)


def test_no_batch_follows_from_the_ones_before(take_steps: Any) -> None:
    trial = take_steps(HERE / "honest" / "plain.py")
    predicted = trial.reference.make_batch(trial.generator)
    assert not predicted["words"].equal(trial._draw()["words"])


def test_secrets_and_gpus_are_not_shown_to_the_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from accel_bench_judge.subject import environment_of

    monkeypatch.setenv("GITHUB_TOKEN", "value of a secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    shown = environment_of([str(tmp_path), str(tmp_path / "cache")])
    assert "GITHUB_TOKEN" not in shown and shown["OMP_NUM_THREADS"] == "2"
    assert (shown["CUDA_VISIBLE_DEVICES"], shown["TMPDIR"]) == ("", str(tmp_path))


def test_what_an_old_kernel_does_not_prevent_is_listed() -> None:
    from accel_bench_judge.confinement import Confinement

    assert Confinement(7, True).gaps == []
    assert Confinement(4, True).gaps == ["signal other processes of yours"]
    assert Confinement(1, True).gaps[0] == "shorten files"
    assert "use sockets" in Confinement(7, False).gaps
    assert Confinement(0, True).gaps[0].startswith("write files")


def test_a_filter_protects_processes_and_groups_by_the_numbers_of_both_architectures() -> None:
    from accel_bench_judge.system_calls import MACHINES, REFUSE, filter_of

    for machine in MACHINES.values():
        program = filter_of(machine, {1, 4321})
        lines = list(struct.iter_unpack("=HBBI", program))
        assert len(lines) < 4096  # the kernel's limit
        assert sum(line[3] == REFUSE for line in lines) == 4 + 4 * 11 + 2 * (1 + 4) + 2
        assert {line[3] for line in lines} >= {4321, 2**32 - 4321, 2**32 - 1, *machine.refused}
