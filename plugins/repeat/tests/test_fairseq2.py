"""The sweeps of fairseq2's tutorial: at its sizes they plan, and at a small one they run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from catalogue_files import write_catalogue

from accel_bench import Result, Status
from accel_bench.analysis.checks.audit import audit
from accel_bench.documents.presets import preset_path
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.testing import make_machine, run_scenario

pytestmark = pytest.mark.box

TAGS = {
    "fairseq2-sft": [f"ps_fairseq2-sft.ws_32.4_2048_bfloat16.torch-2.{n}" for n in (11, 13)],
    "fairseq2-dpo": [f"ps_fairseq2-dpo.ws_32.beta_{beta}" for beta in (0.1, 0.2, 0.5)],
    "fairseq2-translation": [
        f"ps_fairseq2-translation.ws_32.eng-{lang}" for lang in ("fra", "deu", "spa")
    ],
    "fairseq2-speech": ["ps_fairseq2-speech.ws_32.mal_100000.minal_1000.norm_true"],
}
"""The tag of each point."""

EIGHT = make_machine(*[(9, 0)] * 8).gpus

FEW_STEPS = {
    "measure.warmup": 1,
    "measure.steps": 7,
    "measure.phase_steps": 0,
    "resources.threads": 1,
}


@pytest.mark.parametrize("name", TAGS)
def test_a_sweep_of_the_tutorial_plans_on_four_nodes_of_eight_gpus(
    name: str, tmp_path: Path
) -> None:
    for lang in ("fr", "de", "es"):
        write_catalogue(tmp_path, lang, "program", {"open": "ouvrir"})
    draft = read_draft(preset_path("scenarios", name))
    if draft.data["data"]["use"] == "translations":
        draft.set("data.path", str(tmp_path), "the test")
    here = read_machine()
    gpus = [gpu.model_copy(update={"memory_bytes": 80 * 2**30}) for gpu in EIGHT]
    machine = here.model_copy(update={"gpus": gpus, "versions": {**here.versions, "torch": "2.13"}})
    plan = make_plan(draft, machine, PlanRequest(allow_environment=True, build_environments=False))
    reasons = {reason for one in plan.planned for reason in one.skipped}
    assert all("is not built yet; a run builds it" in reason for reason in reasons), reasons
    assert bool(reasons) is (name == "fairseq2-sft")
    assert [one.experiment.tag for one in plan.planned] == TAGS[name]
    assert len({one.experiment.id for one in plan.planned}) == len(TAGS[name])
    assert {one.experiment.scenario.world_size for one in plan.planned} == {32}
    assert {one.experiment.scenario.measure.rounds for one in plan.planned} == {2}


def point(name: str, **chosen: Any) -> Result:
    """Run one point of a shipped sweep, for a few steps."""
    settings = {key.replace("__", "."): value for key, value in chosen.items()}
    (found,) = run_scenario(name, only=["baseline"], settings=FEW_STEPS | settings).values()
    assert found.status is Status.OK, found.reasons
    assert not audit(found)
    return found


def losses(result: Result) -> list[float]:
    """Losses of a run, from its first step on."""
    window = result.ranks[0].window
    assert window is not None
    return [float(one.loss or 0) for one in (*window.warmup, *window.samples)]


def test_a_beta_is_run_beside_a_reference_of_the_same_name() -> None:
    small = {"data__limit_bytes": 20_000, "data__sequence_length": 64}
    found = losses(point("dpo-sweep", task__beta=0.5, **small))
    # Before its first step the policy is the reference, whatever beta is.
    assert found[0] == pytest.approx(math.log(2), rel=1e-6)
    assert found[1:] != pytest.approx([math.log(2)] * 7, rel=1e-3)


def test_another_pair_of_languages_is_trained_on(tmp_path: Path) -> None:
    words = "open close file folder page line word print save edit view help search find".split()
    texts = {f"{a} the {b}": f"{a}en die {b}en" for a in words for b in words}
    write_catalogue(tmp_path, "de", "program", texts)
    few = {"data__path": str(tmp_path), "data__samples": 100, "data__sequence_length": 24}
    found = point("translation-sweep", data__target_lang="deu", **few)
    assert losses(found)[-1] < losses(found)[0]
    assert found.experiment.tag == "ps_translation-sweep.ws_1.eng-deu"


def test_speech_as_it_is_trains_the_projection_of_a_frozen_encoder() -> None:
    few = {"data__samples": 16, "data__max_audio_len": 8_000}
    phase = {"task__freeze_encoder_for_n_steps": 1000, "data__normalize_audio": False}
    found = point("speech-sweep", **phase, **few)
    assert losses(found)[-1] < losses(found)[0]
    effective = found.ranks[0].effective
    assert effective is not None and effective.gradient_flow is not None
    assert effective.gradient_flow.trained_tensors == 2
