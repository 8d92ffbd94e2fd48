"""What a plugin's import changes in the environment reaches no worker, and is named."""

from __future__ import annotations

import pytest
from fault_plugins.distribution import install, install_faulty
from faults.program import Finished, Program, null_scenario

from accel_bench.result import Status

SOURCE = """
import os
from accel_bench import Options, Plugin, hookimpl

os.environ["OMP_NUM_THREADS"] = "3"
os.environ.pop("KMP_SETTINGS", None)

class Setter(Plugin[Options]):
    @hookimpl
    def check_scenario(self):
        os.environ["MKL_NUM_THREADS"] = "3"
        return []
"""
SHOW = {
    "use": "faulty",
    "fault": "show",
    "hook": "report_evidence",
    "value": ["OMP_NUM_THREADS", "KMP_SETTINGS", "MKL_NUM_THREADS"],
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of a baseline, and of a stack whose plugin changes the environment."""
    folder = tmp_path_factory.mktemp("setter")
    site = folder / "site"
    site.mkdir()
    install_faulty(site)
    install(site, "bench-setter", {"setter": "Setter"}, SOURCE)
    given = {"OMP_NUM_THREADS": "2", "KMP_SETTINGS": "0", "MKL_NUM_THREADS": "2"}
    program = Program(folder, site, given)
    return program.run(null_scenario({"baseline": [SHOW], "set": ["setter", SHOW]}), "--quiet")


@pytest.mark.parametrize("stack", ["baseline", "set"])
def test_every_worker_has_the_environment_of_the_caller(finished: Finished, stack: str) -> None:
    shown = finished.result(stack).ranks[0].evidence["faulty"]
    assert shown == {"OMP_NUM_THREADS": "2", "KMP_SETTINGS": "0", "MKL_NUM_THREADS": "2"}


def test_the_result_names_plugin_and_variables(finished: Finished) -> None:
    row = finished.result("set")
    assert row.status is Status.DEGRADED
    (reason,) = row.reasons
    assert reason.startswith(
        "plugin 'setter' (bench-setter) changed KMP_SETTINGS, OMP_NUM_THREADS at its import, which "
        "was undone: "
    )


def test_a_stack_without_the_plugin_has_nothing_to_say(finished: Finished) -> None:
    assert finished.result("baseline").status is Status.OK
