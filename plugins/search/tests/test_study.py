"""A study in the results database: the same history gives the same next trial."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from accel_bench_search.study import Axis, Study, open_study
from sqlalchemy import make_url
from store.postgresql_server import running_server
from store.store_factory import make_result, make_session

from accel_bench.store.database import Store, open_store

AXES = (Axis("rate", 1e-5, 1e-1, log=True), Axis("batch", 1, 64), Axis("kind", choices=("a", "b")))


def try_some(study: Study, trials: int) -> None:
    """Run trials with a value derived from their parameters; some are pruned."""
    for _ in range(trials):
        trial = study.ask()
        batch = trial.params["batch"]
        assert isinstance(batch, int)
        if batch > 48:
            study.tell(trial, "PRUNED", None, {"reason": "out of memory"})
        else:
            study.tell(trial, "COMPLETE", float(batch), {})


def told(study: Study) -> list[Any]:
    """Facts of each finished trial."""
    return [(one.number, one.params, one.value, one.user_attrs) for one in study.trials()]


def opened(store: Store, name: str = "some") -> AbstractContextManager[Study]:
    """The study, from the database."""
    return open_study(store, name, AXES, seed=1, maximize=True)


def test_a_study_that_was_stopped_goes_on_as_one_that_was_not(tmp_path: Path) -> None:
    with open_store(tmp_path / "one", write=True) as store, opened(store) as study:
        try_some(study, 14)
        whole = told(study)
    for part in (5, 9):
        with open_store(tmp_path / "two", write=True) as store, opened(store) as study:
            try_some(study, part)
    with open_store(tmp_path / "two", write=True) as store, opened(store) as study:
        assert told(study) == whole
        with opened(store, "another") as other:
            assert other.trials() == []
        assert store.count() == 0


def test_a_trial_that_was_cut_off_is_data_and_is_tried_again(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        with opened(store) as study:
            trial = study.ask()
        with opened(store) as study:
            assert study.trials()[trial.number].state.name == "FAIL"
            assert study.ask().params == trial.params


def test_a_study_stands_beside_the_results_in_one_database(tmp_path: Path) -> None:
    with running_server() as server:
        url = make_url(server).update_query_dict({"folder": str(tmp_path)})
        address = url.render_as_string(hide_password=False)
        for number in range(2):
            with open_store(address, write=True) as store, opened(store) as study:
                assert len(study.trials()) == number
                study.tell(study.ask(), "COMPLETE", 2.5, {"run_id": f"run-{number}"})
                store.add_session(make_session(f"session-{number}"))
                store.add(make_result(f"run-{number}", session=f"session-{number}"))
        with open_store(address, write=False) as store:
            assert store.count() == 2
