"""A hub id is looked up while a run is planned: against a hub on this machine, and against none."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from accel_bench import read_machine
from accel_bench.catalog import hub
from accel_bench.catalog.models import architecture_of
from accel_bench.errors import ScenarioError
from accel_bench.planning.plan import Plan, PlanRequest, make_plan
from accel_bench.scenario.find import read_draft
from accel_bench.scenario.uses import ModelUse

KNOWN = {"id": "acme/llama", "config": {"architectures": ["LlamaForCausalLM"]}, "siblings": []}
"""A model without a file of weights."""

ASKED: list[str] = []
"""Paths of models that the hub was asked for."""


class Hub(BaseHTTPRequestHandler):
    """Answers as the public hub does, for one model with one revision."""

    def do_GET(self) -> None:
        place = self.path.partition("?")[0]
        if place.startswith("/api/models/"):  # huggingface_hub asks for other things of its own
            ASKED.append(place)
        if place == "/api/models/acme/gated":
            self._answer(200, json.dumps({**KNOWN, "gated": "manual"}))
        elif place in ("/api/models/acme/llama", "/api/models/acme/llama/revision/v1"):
            self._answer(200, json.dumps(KNOWN))
        elif place.startswith("/api/models/acme/llama/revision/"):
            self._answer(404, "{}", "RevisionNotFound")
        elif place.startswith("/api/models/acme/broken"):
            self._answer(500, "{}")
        else:
            self._answer(404, "{}", "RepoNotFound")

    def _answer(self, code: int, body: str, error: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what was looked up, and allow to look."""
    ASKED.clear()
    monkeypatch.setattr(hub, "_FOUND", {})
    monkeypatch.setattr(hub, "_UNREACHED", {})
    for name in hub.OFFLINE:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A hub on this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv(hub.ENDPOINT, address)
        yield address
        server.shutdown()


def plan_of(folder: Path, **model: str) -> Plan:
    """The plan of a scenario with a model of a hub, and a stack for one architecture alone."""
    path = folder / "hub.yaml"
    path.write_text(json.dumps({"model": model, "resources": {"device": "cpu"}}))
    return make_plan(read_draft(path), read_machine(), PlanRequest())


@pytest.mark.usefixtures("served")
def test_a_model_that_is_there_has_its_architecture_from_then_on(tmp_path: Path) -> None:
    use = ModelUse(id="acme/llama")
    assert architecture_of(use) is None
    plan = plan_of(tmp_path, id="acme/llama")
    assert plan.planned[0].skipped == ()
    assert [text for text in plan.notices if "acme/llama" in text] == []
    assert architecture_of(use) == "LlamaForCausalLM"
    plan_of(tmp_path, id="acme/llama")
    assert len(ASKED) == 1, "asked once in a process"


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"id": "acme/lama"}, "model.id 'acme/lama': the hub has no such model"),
        ({"id": "acme/llama", "revision": "v2"}, "the hub has no revision 'v2' of it"),
        ({"id": "acme/lla/ma"}, "it is no hub id"),
    ],
)
def test_a_model_that_is_not_there_is_an_error_before_anything_starts(
    tmp_path: Path, model: dict[str, str], problem: str
) -> None:
    with pytest.raises(ScenarioError, match=problem):
        plan_of(tmp_path, **model)


@pytest.mark.usefixtures("served")
def test_a_revision_that_is_there_is_no_problem(tmp_path: Path) -> None:
    assert plan_of(tmp_path, id="acme/llama", revision="v1").planned[0].skipped == ()


def notices(plan: Plan) -> str:
    """What the plan says beside its runs."""
    assert plan.planned[0].skipped == ()
    return "\n".join(plan.notices)


@pytest.mark.usefixtures("served")
def test_a_hub_that_fails_is_a_sentence(tmp_path: Path) -> None:
    said = notices(plan_of(tmp_path, id="acme/broken"))
    assert "model.id 'acme/broken': whether the hub has it is only known when it is loaded" in said


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("name", hub.OFFLINE)
def test_offline_nothing_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "1")
    assert f"since {name} is set" in notices(plan_of(tmp_path, id="acme/llama"))
    assert ASKED == []


def test_without_a_network_the_plan_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(hub.ENDPOINT, "http://127.0.0.1:9")
    said = notices(plan_of(tmp_path, id="acme/llama"))
    assert "since the hub was not reached: " in said


@pytest.mark.usefixtures("served")
def test_a_gated_model_is_a_notice_where_there_is_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said = notices(plan_of(tmp_path, id="acme/gated"))
    assert "model.id 'acme/gated': its files are only for those with access" in said
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    assert "acme/gated" not in notices(plan_of(tmp_path, id="acme/gated"))


@pytest.mark.usefixtures("served")
def test_a_model_without_weights_that_can_be_loaded_is_a_notice(tmp_path: Path) -> None:
    said = notices(plan_of(tmp_path, id="acme/llama", weights="pretrained"))
    assert "model.id 'acme/llama': the hub has no *.safetensors of it" in said


def test_a_hub_that_is_not_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = []

    def ask(self: Any, name: str, **_: Any) -> None:
        asked.append(name)
        raise ConnectionError("no route to https://me:secret@hub.acme.org/api")

    monkeypatch.setenv(hub.ENDPOINT, "https://me:secret@hub.acme.org")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    found = [hub.look_up(ModelUse(id=f"acme/{number}")) for number in range(3)]
    assert asked == ["acme/0"]
    assert {one.unknown for one in found} == {
        "the hub was not reached: no route to https://hub.acme.org/api"
    }
