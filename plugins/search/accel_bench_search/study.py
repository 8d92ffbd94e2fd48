"""An Optuna study in the results database: its keys, its trials, and the next trial.

Optuna's tables (`studies`, `trials`, `trial_params`, ...) are in the same database as the tables of
results, with distinct names. Optuna migrates only its own tables; it records their version in
`alembic_version`, which the results do not use.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from accel_bench.documents.base import JsonValue
from accel_bench.documents.load import parse_value
from accel_bench.errors import AccelBenchError, ScenarioError, StoreError
from accel_bench.store.database import TIMEOUT_SECONDS, Store

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import RDBStorage
    from optuna.study import Study as OptunaStudy
    from optuna.trial import FrozenTrial, Trial

LOG = ":log"
"""Suffix of a range whose values are sampled on a logarithmic scale."""


class Axis(NamedTuple):
    """Key of a tuned setting, with its `choices` or range of values, from `--vary KEY=SPEC`."""

    key: str
    low: float = 0
    high: float = 0
    log: bool = False
    choices: tuple[JsonValue, ...] = ()

    @property
    def whole(self) -> bool:
        """True for a range of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> tuple[JsonValue, JsonValue]:
        """First and last value of the axis."""
        return (self.choices[0], self.choices[-1]) if self.choices else (self.low, self.high)

    def holds(self, value: JsonValue) -> bool:
        """Return whether the axis includes a value."""
        if self.choices:
            return any(value == choice and type(value) is type(choice) for choice in self.choices)
        number = isinstance(value, int if self.whole else int | float)
        return number and not isinstance(value, bool) and self.low <= value <= self.high  # type: ignore[operator]


def parse_axis(text: str) -> Axis:
    """Return the axis in text such as `KEY=1..64`, `KEY=1e-5..1e-1:log` or `KEY=a,b,c`.

    Raises ScenarioError for other text.
    """
    key, equals, spec = (part.strip() for part in text.partition("="))
    if not key or not equals or not spec:
        raise ScenarioError(
            f"--vary {text}: expected KEY=SPEC, such as train.learning_rate=1e-5..1e-2:log, "
            "train.micro_batch_size=1..64 or model.attention=sdpa,eager"
        )
    where = f"--vary {key}"
    if ".." not in spec:
        values = tuple(parse_value(word.strip(), where) for word in spec.split(","))
        if not all(
            isinstance(value, str | int | float | bool) or value is None for value in values
        ):
            raise ScenarioError(f"{where}: {spec}: each of the values is a number, a text or null")
        return Axis(key, choices=values)
    log = spec.endswith(LOG)
    low, high = (_number(end, where) for end in spec.removesuffix(LOG).split("..", 1))
    if low >= high or (log and low <= 0):
        above = " above 0" if log else ""
        raise ScenarioError(f"{where}: {spec} is no range{above} from a smaller to a larger number")
    return Axis(key, low, high, log)


def _number(text: str, where: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ScenarioError(f"{where}: {text!r} is no number")
    return number


MISSING = "`accel-bench tune` needs Optuna: pip install 'accel-bench[tune]'"

State: TypeAlias = Literal["COMPLETE", "PRUNED", "FAIL"]
"""Optuna's states of finished trials; its sampler also learns from pruned trials."""


CUT_OFF = "it was cut off"
"""Reason of a failed trial that recorded none, since the program was killed."""


class Study:
    """A resumable Optuna study; studies with equal histories choose equal next trials."""

    def __init__(self, study: OptunaStudy, axes: Sequence[Axis], seed: int) -> None:
        from optuna.trial import TrialState

        self.optuna = study
        self._seed = seed
        self._distributions = {axis.key: _distribution(axis) for axis in axes}
        for trial in study.get_trials(deepcopy=False):
            if trial.state is TrialState.RUNNING:
                study.tell(trial.number, state=TrialState.FAIL)
                study.enqueue_trial(trial.params)

    def trials(self) -> list[FrozenTrial]:
        """Return the finished trials of the study, in order."""
        return [
            trial for trial in self.optuna.get_trials(deepcopy=False) if trial.state.is_finished()
        ]

    def try_first(self, parameters: dict[str, JsonValue]) -> None:
        """Set the values of a study's first trial; do nothing if the study has trials already."""
        if not self.optuna.get_trials(deepcopy=False):
            self.optuna.enqueue_trial(parameters)

    def ask(self) -> Trial:
        """Return a new trial with the values that the sampler chose for it."""
        from optuna.samplers import TPESampler

        # A sampler's generator is not stored: each trial has its own, so that resuming is the same.
        seed = self._seed + len(self.optuna.get_trials(deepcopy=False))
        self.optuna.sampler = TPESampler(seed=seed % 2**32)
        return self.optuna.ask(fixed_distributions=self._distributions)

    def tell(self, trial: Trial, state: State, value: float | None, notes: dict[str, Any]) -> None:
        """Finish a trial with its objective `value` (None if not complete), and store `notes`."""
        from optuna.trial import TrialState

        for key, note in notes.items():
            trial.set_user_attr(key, note)
        self.optuna.tell(trial, value, state=TrialState[state])


@contextmanager
def open_study(
    store: Store, name: str, axes: Sequence[Axis], seed: int, maximize: bool
) -> Iterator[Study]:
    """Yield the study `name` of the results database, opened or created.

    `seed` is the sampler's seed, and `maximize` is true if larger objectives are better. Raises
    AccelBenchError without Optuna, and StoreError for tables of another version.
    """
    try:
        import optuna
    except ImportError as error:
        raise AccelBenchError(MISSING) from error

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = _storage(store)
    try:
        study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize" if maximize else "minimize",
            load_if_exists=True,
        )
        yield Study(study, axes, seed)
    finally:
        storage.remove_session()
        storage.engine.dispose()


def require_optuna() -> None:
    """Raise AccelBenchError with the install command if Optuna is not installed."""
    from importlib.util import find_spec

    if find_spec("optuna") is None:
        raise AccelBenchError(MISSING)


def _storage(store: Store) -> RDBStorage:
    from optuna.exceptions import StorageInternalError
    from optuna.storages import RDBStorage
    from sqlalchemy.pool import QueuePool

    engine: dict[str, Any] = {}
    address = store.url.render_as_string(hide_password=False)
    if store.on_sqlite:
        path = Path(str(store.url.database))

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(path, timeout=TIMEOUT_SECONDS, check_same_thread=False)

        # Not as an address: a folder's name may hold what means something there.
        address, engine = "sqlite://", {"creator": connect, "poolclass": QueuePool}
    try:
        return RDBStorage(address, engine_kwargs=engine)
    except (RuntimeError, StorageInternalError) as error:
        raise StoreError(f"no study can be kept in {store.place}: {error}") from error


def _distribution(axis: Axis) -> BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if axis.choices:
        return CategoricalDistribution(axis.choices)  # type: ignore[arg-type]
    if axis.whole:
        return IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return FloatDistribution(axis.low, axis.high, log=axis.log)
