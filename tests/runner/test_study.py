"""A study in the results database: the same history gives the same next trial."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from accel_bench.runner.study import Study, open_study
from accel_bench.runner.tune_space import Axis
from accel_bench.store.database import Store, open_store

AXES = (Axis("rate", 1e-5, 1e-1, log=True), Axis("batch", 1, 64), Axis("kind", choices=("a", "b")))


def try_some(study: Study, trials: int) -> None:
    """Trials with a value that follows from their parameters; some are pruned."""
    for _ in range(trials):
        number, parameters = study.ask()
        batch = parameters["batch"]
        assert isinstance(batch, int)
        if batch > 48:
            study.tell(number, "PRUNED", notes={"reason": "out of memory"})
        else:
            study.tell(number, "COMPLETE", float(batch), notes={})


def opened(store: Store, name: str = "some") -> AbstractContextManager[Study]:
    """The study, from the database."""
    return open_study(store, name, AXES, seed=1, maximize=True)


def test_a_study_that_was_stopped_goes_on_as_one_that_was_not(tmp_path: Path) -> None:
    with open_store(tmp_path / "one", write=True) as store, opened(store) as study:
        try_some(study, 14)
        whole = study.trials()
    for part in (5, 9):
        with open_store(tmp_path / "two", write=True) as store, opened(store) as study:
            try_some(study, part)
    with open_store(tmp_path / "two", write=True) as store, opened(store) as study:
        assert study.trials() == whole
        with opened(store, "another") as other:
            assert other.trials() == []
        assert store.count() == 0


def test_a_trial_that_was_cut_off_is_data_and_is_tried_again(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        with opened(store) as study:
            number, parameters = study.ask()
        with opened(store) as study:
            assert study.trials()[number].notes["reason"] == "it was cut off"
            assert study.ask()[1] == parameters
