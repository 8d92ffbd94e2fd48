"""The launchers of docs/launchers.md run as a third party's distribution."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import accel_bench_cluster
import pytest
from fault_plugins.distribution import install
from launched import Launched

from accel_bench import Status

PAGE = Path(__file__).parents[3] / "docs" / "launchers.md"

WITNESS = '''
import os
from accel_bench import Plugin, hookimpl


class Witness(Plugin):
    """Reports what its rank was started with."""

    @hookimpl
    def report_evidence(self, run):
        return {"core": os.environ.get("GOMP_CPU_AFFINITY"), "rank": os.environ["RANK"]}
'''


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Launched]:
    """A program beside which the launchers of the page are installed."""
    bound, mpirun = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    program = Launched(tmp_path, tmp_path)
    for name, source in (("Bound", bound), ("Mpirun", mpirun), ("Witness", WITNESS)):
        install(program.site, f"acme-{name.lower()}", {name.lower(): name}, source)
    yield program
    program.end()


def run(program: Launched, launcher: str) -> list[dict[str, str]]:
    """Run two ranks by a launcher; return their witness's observations."""
    file = program.write(stacks={"seen": ["witness"]})
    done = program.call("run", file, "--set", f"launcher.use={launcher}", "-q", "--oversubscribe")
    assert done.code == 0, done.err
    (result,) = done.results
    assert result.status is Status.OK, result.reasons
    assert program.left_behind() == []
    assert program.ranks_left() == []
    return [rank.evidence["witness"] for rank in result.ranks]


def test_the_launcher_of_one_machine_binds_its_ranks(program: Launched) -> None:
    seen = run(program, "bound")
    assert [one["rank"] for one in seen] == ["0", "1"]
    assert all(one["core"] is not None for one in seen)


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun (Debian: openmpi-bin)")
def test_the_launcher_by_mpirun_starts_its_ranks_by_agents(
    program: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM", "MCA_rmaps_base_oversubscribe"):
        monkeypatch.setenv(f"OMPI_{name}", "1")
    assert [one["rank"] for one in run(program, "mpirun")] == ["0", "1"]


def test_the_page_names_all_that_is_promised() -> None:
    page = PAGE.read_text()
    assert [name for name in accel_bench_cluster.__all__ if f"`{name}" not in page] == []
