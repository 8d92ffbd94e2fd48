"""The store gives back what was added, in order, and overwrites nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from imported_modules import imported
from store.store_factory import MACHINE, make_experiment, make_rank, make_result, make_session

from accel_bench.errors import StoreError
from accel_bench.result import Result, Status
from accel_bench.store.database import open_store

CHILD = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A results folder that is not there yet."""
    return tmp_path / "results"


def fill(folder: Path, *results: Result) -> None:
    """Store results of the session on Monday."""
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        for result in results:
            store.add(result)


def found_by(folder: Path, identifier: str) -> list[str]:
    with open_store(folder, write=False) as store:
        return [result.run_id for result in store.find(identifier)]


def test_a_result_comes_back_equal_from_another_opening_of_the_folder(folder: Path) -> None:
    result = make_result(
        experiment=make_experiment("nf4", {"data.sequence_length": 512}),
        status=Status.DEGRADED,
        reasons=("load was 3.1 on 2 cores; it is usually 0.4",),
        ranks=(make_rank(0), make_rank(1)),
        log_tail="smörgåsbord \x1b[31m\0",
    )
    fill(folder, result)
    with open_store(folder, write=False) as store:
        assert store.results() == [result]


def test_a_session_comes_back_equal_with_its_plan(folder: Path) -> None:
    fill(folder)
    with open_store(folder, write=False) as store:
        assert store.sessions() == [make_session()]


def test_results_are_ordered_by_start_then_round_position_and_attempt(folder: Path) -> None:
    later = make_result("a", started_at="2026-01-05T09:00:00Z")
    retry = make_result("b", round=1, position=1, attempt=1)
    second = make_result("c", round=1, position=1)
    first = make_result("d", round=1, position=0)
    fill(folder, later, retry, second, first)
    with open_store(folder, write=False) as store:
        assert [result.run_id for result in store.results()] == ["d", "c", "b", "a"]
        assert [row.run_id for row in store.rows()] == ["d", "c", "b", "a"]


def test_results_can_be_asked_for_by_session_experiment_and_scenario(folder: Path) -> None:
    lora, long = make_experiment(), make_experiment(sweep={"data.sequence_length": 4096})
    fill(folder, make_result("a", experiment=lora), make_result("b", experiment=long))
    with open_store(folder, write=True) as store:
        store.add_session(make_session("tuesday"))
        store.add(make_result("c", session="tuesday", experiment=lora))

        def ids(**which: object) -> list[str]:
            return [result.run_id for result in store.results(**which)]  # type: ignore[arg-type]

        assert ids(session="tuesday") == ["c"]
        assert ids(experiment_ids=[lora.id]) == ["a", "c"]
        assert ids(experiment_ids=[]) == []
        assert ids(session="monday", experiment_ids={lora.id, long.id}) == ["a", "b"]
        assert ids(scenario="peft") == ["a", "b", "c"]
        assert ids(scenario="other") == []


def test_a_run_id_is_stored_once_and_the_first_row_stays(folder: Path) -> None:
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        store.add(make_result("same", seconds=1.0))
        with pytest.raises(StoreError, match=r"'same' is already in .*nothing is overwritten"):
            store.add(make_result("same", seconds=2.0))
        with pytest.raises(StoreError, match="'monday' is already in"):
            store.add_session(make_session())
        assert [result.seconds for result in store.results()] == [1.0]


def test_a_run_without_its_session_is_refused(folder: Path) -> None:
    with open_store(folder, write=True) as store:
        with pytest.raises(StoreError, match=r"'friday'.*add the session first"):
            store.add(make_result(session="friday"))
        assert store.rows() == []


def test_a_beginning_finds_runs_experiments_and_sessions(folder: Path) -> None:
    lora, long = make_experiment(), make_experiment(sweep={"data.sequence_length": 4096})
    fill(folder, make_result("run-1", experiment=lora), make_result("run-10", experiment=long))
    assert found_by(folder, "run-10") == ["run-10"]
    assert found_by(folder, "run-") == ["run-1", "run-10"]
    assert found_by(folder, long.id[:6]) == ["run-10"]
    assert found_by(folder, "mon") == ["run-1", "run-10"]


def test_a_whole_id_is_not_taken_for_the_beginning_of_a_longer_one(folder: Path) -> None:
    fill(folder, make_result("run-1"), make_result("run-10"))
    assert found_by(folder, "run-1") == ["run-1"]


@pytest.mark.parametrize("wild", ["%", "run_1", "RUN-1", "'", ""])
def test_an_id_is_text_and_not_a_pattern(folder: Path, wild: str) -> None:
    fill(folder, make_result("run-1"))
    with pytest.raises(StoreError, match="begins with"):
        found_by(folder, wild)


def test_an_unknown_id_is_answered_with_the_nearest_one(folder: Path) -> None:
    fill(folder, make_result("run-1"))
    with pytest.raises(StoreError, match="did you mean 'run-1'"):
        found_by(folder, "rum-1")
    with pytest.raises(StoreError, match="the newest are run-1"):
        found_by(folder, "zzzzzzzz")


def test_reading_a_folder_without_results_names_the_command_that_makes_some(folder: Path) -> None:
    with pytest.raises(StoreError, match="accel-bench run"):
        with open_store(folder, write=False):
            pass
    assert not folder.exists()


def test_reading_leaves_no_file_behind_and_changes_none(folder: Path) -> None:
    fill(folder, make_result())
    before = (folder / "results.sqlite").read_bytes()
    with open_store(folder, write=False) as store:
        store.results()
        store.rows()
    assert [path.name for path in folder.iterdir()] == ["results.sqlite"]
    assert (folder / "results.sqlite").read_bytes() == before


def test_a_store_that_was_opened_for_reading_refuses_to_write(folder: Path) -> None:
    fill(folder)
    with open_store(folder, write=False) as store:
        with pytest.raises(StoreError, match="readonly"):
            store.add(make_result())


def test_a_linked_results_folder_is_followed_once(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    link = tmp_path / "link"
    link.symlink_to(folder, target_is_directory=True)
    with open_store(link, write=True) as store:
        assert store.folder == folder.resolve()
    assert (folder / "results.sqlite").is_file()


def test_a_database_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir()
    (folder / "results.sqlite").symlink_to(tmp_path / "elsewhere.sqlite")
    with pytest.raises(StoreError, match="symbolic link"):
        with open_store(folder, write=True):
            pass
    assert not (tmp_path / "elsewhere.sqlite").exists()


@pytest.mark.parametrize("name", ["a\0b", "n" * 300])
def test_a_folder_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError):
        with open_store(tmp_path / name, write=True):
            pass


@pytest.mark.parametrize("write", [False, True])
def test_a_folder_whose_name_is_not_utf8_is_refused(tmp_path: Path, write: bool) -> None:
    with pytest.raises(StoreError, match=r"res\\udcff.*not UTF-8.*choose another folder"):
        with open_store(tmp_path / "res\udcff", write=write):
            pass
    assert not list(tmp_path.iterdir())


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("mine")
    with pytest.raises(StoreError):
        with open_store(tmp_path / "results", write=True):
            pass
    assert (tmp_path / "results").read_text() == "mine"


@pytest.mark.parametrize("rows", [25, pytest.param(1000, marks=pytest.mark.release)])
def test_eight_processes_that_start_and_write_together_lose_no_row(folder: Path, rows: int) -> None:
    # Forked once all is imported, they open the store at the same moment.
    script = (
        "import os, sys; from pathlib import Path\n"
        "from accel_bench.store.database import open_store\n"
        "from store.store_factory import make_result, make_session\n"
        "folder, rows, forked = Path(sys.argv[1]), int(sys.argv[2]), []\n"
        "while len(forked) < 8 and (process := os.fork()):\n"
        "    forked.append(process)\n"
        "if len(forked) == 8:\n"
        "    sys.exit(any([os.waitpid(process, 0)[1] for process in forked]))\n"
        "writer = f'writer-{len(forked)}'\n"
        "with open_store(folder, write=True) as store:\n"
        "    store.add_session(make_session(writer))\n"
        "    for row in range(rows):\n"
        "        store.add(make_result(f'{writer}-{row}', session=writer))\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(rows)]
    assert subprocess.run(command, env=CHILD, check=False).returncode == 0
    with open_store(folder, write=False) as store:
        listed = store.rows()
    assert len({row.run_id for row in listed}) == 8 * rows
    assert not any(row.corrupt for row in listed)


def test_rows_acknowledged_before_a_kill_are_all_there(folder: Path) -> None:
    script = (
        "import itertools, sys; from pathlib import Path\n"
        "from accel_bench.store.database import open_store\n"
        "from store.store_factory import make_result, make_session\n"
        "with open_store(Path(sys.argv[1]), write=True) as store:\n"
        "    store.add_session(make_session())\n"
        "    for row in itertools.count():\n"
        "        store.add(make_result(f'run-{row}'))\n"
        "        print(f'run-{row}', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], env=CHILD, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        acknowledged = {writer.stdout.readline().strip() for _ in range(25)}
        writer.kill()
        acknowledged |= {line.strip() for line in writer.stdout if line.endswith("\n")}
    with open_store(folder, write=True) as store:
        stored = {row.run_id for row in store.rows() if not row.corrupt}
    assert len(acknowledged) >= 25
    assert acknowledged <= stored


def test_what_is_stored_holds_no_secret_of_the_environment(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "canary-hf-0123456789")
    monkeypatch.setenv("DB_PASSWORD", 'canary"quoted\\pw')
    result = make_result(
        log_tail="Traceback: 401 for canary-hf-0123456789",
        reasons=('login failed with canary"quoted\\pw',),
        machine=MACHINE.model_copy(update={"libraries": {"HF_TOKEN": "canary-hf-0123456789"}}),
        command=("accel-bench", "run", "--token", "canary-argument", "peft.yaml"),
    )
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        store.add(result)
        stored = store.results()[0]
        files = [path.read_bytes() for path in folder.iterdir()]
    assert not any(b"canary" in content for content in files)
    assert stored.log_tail == "Traceback: 401 for [redacted]"
    assert stored.ranks == result.ranks
    assert stored.experiment == result.experiment


def test_what_is_stored_is_returned_and_holds_no_secret_of_its_scenario(folder: Path) -> None:
    environment = {"WANDB_API_KEY": "canary-of-the-scenario"}
    result = make_result(log_tail="401 for canary-of-the-scenario")
    work = result.experiment.scenario.model_copy(update={"environment": environment})
    experiment = result.experiment.model_copy(update={"scenario": work})
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        stored = store.add(result.model_copy(update={"experiment": experiment}))
        assert store.results() == [stored]
    assert stored.log_tail == "401 for [redacted]"
    assert stored.experiment.scenario.environment == {"WANDB_API_KEY": "[redacted]"}


def test_a_secret_that_is_a_word_of_the_schema_is_named_and_stores_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", "measured")
    with open_store(folder, write=True) as store:
        store.add_session(make_session())
        with pytest.raises(StoreError, match="unset variables such as"):
            store.add(make_result())
        assert store.rows() == []


def test_importing_the_store_imports_nothing_heavy() -> None:
    program = (
        "import accel_bench.store.database, accel_bench.documents.files\n"
        "import accel_bench.analysis.tables.listing, accel_bench.store.listing\n"
    )
    assert not imported(program, {"torch", "transformers", "numpy", "scipy", "pandas"})
