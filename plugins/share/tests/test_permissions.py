"""Permissions of a bundle's scenario: nothing of this machine is used without leave."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from accel_bench_share.bundle_reader import Bundle
from accel_bench_share.bundle_writer import scenario_of_session
from accel_bench_share.permissions import OWN, TAKEN, draft_of, evaluated, repeats, request_of
from repeated_sessions import SCENARIO, make_runs

from accel_bench.errors import BundleError, ScenarioError
from accel_bench.machine.info import read_machine
from accel_bench.planning.plan import PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.models import ScenarioFile
from accel_bench.store.sessions import SessionRecord

from .bundles import read


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle, written and read."""
    return read(tmp_path_factory.mktemp("bundle"), make_runs())


def asking(made: Bundle, **scenario: Any) -> Bundle:
    """A bundle whose scenario asks for more, with valid checksums."""
    return replace(made, scenario=SCENARIO | scenario)


@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        ("data.path", {"data": {"use": "text", "path": "/etc/passwd"}}),
        ("data.path", {"data": {"use": "text", "path": "~/.ssh/id_rsa"}}),
        ("data.path", {"data": {"use": "text", "path": "[path]/corpus.txt"}}),
        ("data.tokenizer", {"data": {"use": "text", "tokenizer": "a/../../x"}}),
        ("model.id", {"model": {"id": "./weights"}}),
        ("stacks.fast.x.folder", {"stacks": {"fast": {"use": [{"use": "x", "folder": "/opt"}]}}}),
        ("adapter.cache_dir", {"adapter": {"use": "x", "cache_dir": "kept"}}),
        (
            "stacks.fast.x.folder",
            {"stacks": {"fast": {"use": [{"use": "x", "folder": "offload"}]}}},
        ),
        ("sweep.data.path", {"sweep": {"data.path": ["a.txt", "/b.txt"]}}),
        ("data.path", {"data": {"use": "text", "path": ".ssh"}}),
        ("data.files", {"data": {"use": "text", "files": ["mail"]}}),
        ("sweep.data.path", {"sweep": {"data.path": [".ssh"]}}),
        ("zip.data.path", {"zip": {"data.path": [".ssh"], "train.seed": [1]}}),
        (
            "stacks.fast.set.data.path",
            {"stacks": {"fast": {"use": [], "set": {"data.path": ".ssh"}}}},
        ),
    ],
)
def test_a_path_of_this_machine_must_be_named_here(
    made: Bundle, key: str, scenario: dict[str, Any]
) -> None:
    with pytest.raises(BundleError, match=rf"bundle\.zip: {key} is .*--set {key}=PATH"):
        draft_of(asking(made, **scenario), [])
    draft_of(asking(made, **scenario), [key])


def test_a_name_of_a_file_or_folder_that_is_here_is_one_too(
    made: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("private")
    for name in (".ssh", "text", "cpu"):
        (tmp_path / name).mkdir()  # that of a folder here may be a word of the scenario
    asked = [
        asking(made, **{slot: {"use": "text", "tokenizer": name}}, resources={"device": "cpu"})
        for slot, name in (("data", "notes.txt"), ("data", ".ssh"), ("engine", "cpu"))
    ]
    asked.append(asking(made, sweep={"model.id": ["text"]}))
    plain = asking(made, stacks={"lora": {"use": ["text"], "description": "text"}})
    for one in asked:
        assert draft_of(one, []).get("baseline") == "lora"
    monkeypatch.chdir(tmp_path)
    keys = ("data.tokenizer", "data.tokenizer", "engine.tokenizer", "sweep.model.id")
    for one, key in zip(asked, keys, strict=True):
        with pytest.raises(BundleError, match=rf"{key} is .*, a path; "):
            draft_of(one, [])
        draft_of(one, [key])
    draft_of(plain, [])


ELSEWHERE = {"use": "openai-endpoint", "url": "http://models.test/v1", "allow_other_hosts": True}


@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        ("engine.url", {"engine": ELSEWHERE}),
        ("engine.url", {"engine": ELSEWHERE | {"url": "http://127.0.0.1@models.test/v1"}}),
        ("engine.url", {"engine": ELSEWHERE | {"url": "http://127.0.0.1.models.test:80/v1"}}),
        ("engine.url", {"engine": ELSEWHERE | {"url": "http://0.0.0.0:8000/v1"}}),
        ("engine.url", {"engine": ELSEWHERE | {"url": "http://[::1/v1"}}),
        ("engine.server", {"engine": {"use": "x", "server": "models.test:8000"}}),
        ("data.path", {"data": {"use": "x", "path": "s3://bucket/rows.jsonl"}}),
        ("engine.hosts", {"engine": {"use": "x", "hosts": ["localhost", "models.test"]}}),
        ("engine.base_addr", {"engine": {"use": "x", "base_addr": "models.test"}}),
        ("engine.proxies.http", {"engine": {"use": "x", "proxies": {"http": "models.test:1"}}}),
        ("environment.MASTER_ADDR", {"environment": {"MASTER_ADDR": "models"}}),
        ("engine.at", {"engine": {"use": "x", "at": "models.test:1"}}),
        ("engine.at", {"engine": {"use": "x", "at": "models:8000/v1"}}),
        ("engine.at", {"engine": {"use": "x", "at": "localhost:8000,me@models:8000"}}),
        ("engine.at", {"engine": {"use": "x", "at": "10.0.0.7"}}),
        ("engine.at", {"engine": {"use": "x", "at": "[fe80::1]:8000"}}),
        (
            "stacks.fast.set.engine.url",
            {"stacks": {"fast": {"use": [], "set": {"engine.url": "http://10.0.0.7:8000/v1"}}}},
        ),
        ("sweep.engine.url", {"sweep": {"engine.url": ["http://localhost/v1", "http://a.test"]}}),
        ("stacks.fast.x.uri", {"stacks": {"fast": {"use": [{"use": "x", "uri": "https:"}]}}}),
    ],
)
def test_a_host_that_is_another_machine_must_be_named_here(
    made: Bundle, key: str, scenario: dict[str, Any]
) -> None:
    """Prompts would go to whom somebody else's file names."""
    with pytest.raises(BundleError, match=rf"{key} is .*another machine.*--set {key}=ADDRESS"):
        draft_of(asking(made, **scenario), [])
    draft_of(asking(made, **scenario), [key])


def test_the_way_out_of_a_refusal_is_taken(made: Bundle) -> None:
    """The keys that a refusal names are those that `--set` changes."""
    stacks = {
        "fast": {"use": [{"use": "x", "folder": "/a"}], "set": {"engine.url": "http://b.test"}}
    }
    mine = {"stacks.fast.x.folder": "/mine", "stacks.fast.set.engine.url": "http://mine.test"}
    draft = draft_of(asking(made, stacks=stacks), list(mine))
    draft.override(list(mine.items()))
    assert draft.data["stacks"]["fast"] == {
        "use": [{"use": "x", "folder": "/mine"}],
        "set": {"engine.url": "http://mine.test"},
    }


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:8000", "127.8.9.10"])
def test_a_server_on_the_loopback_address_is_this_machines_own(made: Bundle, host: str) -> None:
    url = f"http://{host}/v1"
    asked = asking(made, engine={"use": "openai-endpoint", "url": url})
    assert draft_of(asked, []).get("engine.url") == url


def test_a_session_without_the_named_baseline_is_compared_with_its_first_stack() -> None:
    """As `run --no-baseline` leaves it."""
    written = {"name": "x", "baseline": "baseline", "stacks": {"one": {"use": []}}}
    session = SessionRecord(id="x", started_at="2026", scenario="x", document={"written": written})
    assert scenario_of_session(session)["baseline"] == "one"


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ({"stacks": {}, "baseline": None}, "at least one stack is needed"),
        ({"stacks": {"other": {"use": []}}, "baseline": "other"}, "'lora' is not in it"),
        ({"data": {"sequence_length": 111}}, r"has another data\.sequence_length"),
        ({"train": {"learning_rate": 0.5}}, r"has another train\.learning_rate"),
        ({"mode": "inference", "data": {"use": "x"}}, "has another mode"),
        ({"mode": "inference"}, "prompt_tokens is 128"),
        ({"stacks": SCENARIO["stacks"] | {"lora": {"use": ["y"]}}}, "'lora' uses other plugins"),
        (
            {"stacks": SCENARIO["stacks"] | {"fast": {"use": [], "set": {"train.seed": 7}}}},
            r"'fast' has another train\.seed",
        ),
        ({"sweep": {"train.seed": [1, 2]}}, "'lora' is not in it"),
    ],
)
def test_a_scenario_that_is_not_that_of_the_runs_is_not_verified(
    made: Bundle, scenario: dict[str, Any], problem: str
) -> None:
    evaluated(made)
    with pytest.raises(BundleError, match=rf"bundle\.zip: .* not that of its runs: .*{problem}"):
        evaluated(asking(made, **scenario))


def test_texts_that_lead_nowhere_are_left(made: Bundle) -> None:
    told = {
        "description": "see /etc/passwd at models.test:8000",
        "model": {"id": "org/name"},
        "engine": {"use": "of-mine:name", "on": "cuda:0", "at": "127.0.0.1:8000 ::1"},
    }
    assert draft_of(asking(made, **told), []).get("model.id") == "org/name"


def test_the_launcher_is_this_machines_own(made: Bundle) -> None:
    slurm = {"launcher": {"use": "slurm", "partition": "all"}}
    assert draft_of(asking(made, **slurm), []).get("launcher") is None
    stacks = {"stacks": {"lora": {"set": {"launcher.use": "slurm"}, "use": []}}}
    with pytest.raises(BundleError, match=r"'lora' sets 'launcher\.use'; a bundle may not"):
        draft_of(asking(made, **stacks), [])


def test_trackers_are_chosen_here(made: Bundle) -> None:
    """Each would write files of the bundle's choice here, or send what is measured away."""
    evil = [
        {"use": "tensorboard", "folder": "public_html"},
        {"use": "mlflow", "tracking_uri": "http://evil.test"},
        {"use": "mlflow", "tracking_uri": "sqlite:////srv/shared/other.db"},
        {"use": "wandb", "mode": "online"},
    ]
    assert "trackers" not in draft_of(asking(made, trackers=evil), []).data


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"notify": "http://evil.test"}, "the scenario sets 'notify'"),
        ({"ladder": ["x"]}, "the scenario sets 'ladder'"),
        ({"sweep": {"launcher.partition": ["all"]}}, r"its sweep sets 'launcher\.partition'"),
        ({"zip": {"trackers": [[], ["wandb"]]}}, "its zip sets 'trackers'"),
    ],
)
def test_a_key_that_is_not_listed_is_refused(
    made: Bundle, scenario: dict[str, Any], message: str
) -> None:
    with pytest.raises(BundleError, match=f"{message}; a bundle may not choose that"):
        draft_of(asking(made, **scenario), [])


def test_every_key_of_a_scenario_is_taken_left_out_or_refused_on_purpose() -> None:
    assert {*ScenarioFile.model_fields} == {*TAKEN, *OWN, "ladder"}


@pytest.mark.parametrize(
    ("scenario", "allowed"),
    [
        ({"environment": {"LD_PRELOAD": "x.so"}}, "--allow-env"),
        (
            {"environments": {"theirs": {"requirements": ["evil"]}}},
            "an environment runs code of its author's choice; --allow-env",
        ),
        ({"stacks": {"lora": {"set": {"environment.PYTHONPATH": "x"}}}}, "--allow-env"),
        ({"sweep": {"environment.PYTHONPATH": ["x"]}}, "--allow-env"),
    ],
)
def test_code_of_the_bundles_choice_is_not_run(
    made: Bundle, scenario: dict[str, Any], allowed: str
) -> None:
    nulls = {slot: {"use": "null"} for slot in ("model", "optimizer", "engine")}
    draft = draft_of(asking(made, **nulls, **scenario), [])
    with pytest.raises(ScenarioError, match=allowed):
        make_plan(draft, read_machine(), PlanRequest())


def test_the_request_names_the_stacks_of_which_there_are_runs(made: Bundle) -> None:
    asked = asking(made, stacks={**SCENARIO["stacks"], "skipped": {"use": []}})
    request = request_of(asked, PlanRequest())
    assert sorted(request.only) == ["fast", "lora", "slow"]
    assert request.tags == ()
    assert repeats(asked).sha256 == made.identity
    assert (repeats(asked).file, repeats(asked).origin) == ("bundle.zip", "measured")


FILE = """\
name: swept
model: {use: null}
data: {use: null}
optimizer: {use: null}
engine: {use: null}
stacks: {baseline: []}
ladder: [{set: {train.gradient_accumulation: 2}, name: more}, {set: {train.seed: 1}, name: seed}]
sweep: {data.sequence_length: [16, 32]}
measure: {steps: 2, warmup: 1}
"""


@pytest.mark.box
def test_the_scenario_of_a_session_makes_the_same_experiments(tmp_path: Path) -> None:
    """Also with a ladder and a sweep, whose keys are both set and swept in what was stored."""
    path = tmp_path / "swept.yaml"
    path.write_text(FILE)
    machine = read_machine()
    plan = make_plan(read_draft(path), machine, PlanRequest())
    document = {"written": plan.file.model_dump(mode="json", exclude_unset=True)}
    session = SessionRecord(id="x", started_at="2026", scenario="swept", document=document)
    path.with_suffix(".json").write_text(_json(scenario_of_session(session)))
    again = make_plan(read_draft(path.with_suffix(".json")), machine, PlanRequest())
    ids = [one.experiment.id for one in plan.planned]
    assert len(ids) == 8
    assert [one.experiment.id for one in again.planned] == ids


def _json(value: Any) -> str:
    import json

    return json.dumps(value)
