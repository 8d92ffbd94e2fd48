"""Names of people, hosts and folders are taken out of what is given away, and nothing else."""

from __future__ import annotations

import pytest
from accel_bench_share.anonymizer import Anonymizer, names_within

from accel_bench.result import Result

HOME = "/".join(("", "Users", "alice"))
"""A home folder of another system than the one that the tests run on."""

KNOWN = Anonymizer(users=("alice",), hosts=("bench-1.lan", "bench-1", "gpu7"))


@pytest.mark.parametrize(
    ("text", "anonymous"),
    [
        (f"{HOME}/texts/train.txt", "[path]/train.txt"),
        ("--data=/mnt/team/x.txt,/srv/data/y.txt", "--data=[path]/x.txt,[path]/y.txt"),
        ('File "/opt/venv/lib/torch/x.py", line 3', 'File "[path]/x.py", line 3'),
        ("~/corpus.txt and ~bob/corpus.txt", "[path]/corpus.txt and [path]/corpus.txt"),
        (f"file://{HOME}/x", "[path]/x"),
        (HOME, "[path]/USER"),
        ("alice@gpu7: alice's run, alice-1", "USER@HOST3: USER's run, USER-1"),
        ("bench-1.lan:29500", "HOST1:29500"),
        # What is no path and no name stays.
        ("https://example.org/a/b?c=/d", "https://example.org/a/b?c=/d"),
        ("tokens/s per device, 3/4, q_proj/k_proj", "tokens/s per device, 3/4, q_proj/k_proj"),
        ("runs/monday/x and ./a/b and /tmp", "runs/monday/x and ./a/b and /tmp"),
        ("malice, bench-10, gpu77", "malice, bench-10, gpu77"),
    ],
)
def test_names_and_folders_are_replaced(text: str, anonymous: str) -> None:
    assert KNOWN.text(text) == anonymous


def test_keys_and_nested_values_are_replaced_too() -> None:
    value = {"gpu7": [f"{HOME}/x/y", {"by": "alice"}], "steps": 3}
    assert KNOWN.value(value) == {"HOST3": ["[path]/y", {"by": "USER"}], "steps": 3}


def test_users_are_found_in_paths_and_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "carol")
    found = Anonymizer.of_texts(["in /home/dave/x and /Users/eve/y"], ["h"])
    assert {"carol", "dave", "eve"} <= {*found.users}
    assert found.text("carol and dave on h") == "USER and USER on h"  # one letter tells nothing
    assert found.host("h") == "HOST"  # where a host must stand, it goes too


def test_a_user_with_the_name_of_a_schemas_word_spoils_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("USER", "train")
    words = names_within(Result.model_json_schema())
    assert {"train", "ok", "experiment", "random"} <= words
    found = Anonymizer.of_texts([], [], keep=words)
    assert found.value({"mode": "train", "path": "/Users/train/x"}) == {
        "mode": "train",
        "path": "[path]/x",
    }
