"""Test kit for authors of plugins; running a plugin does not need it.

    from accel_bench.testing import check_plugin, run_plugin

    def test_the_plugin_keeps_the_contract():
        check_plugin("mine")

    def test_it_counts_what_it_changed():
        result = run_plugin("mine", level=2)
        assert result.status.completed, result.reasons
        assert result.ranks[0].evidence["mine"]["changed_modules"] == 14

The plugin must be installed, editable or not: it is found by its entry point, as users find it.

`run_plugin` runs the plugin in the process of the test, on a model of two small layers, with the
product's own code from planning to the result; `run_scenario` does that with each stack of a
scenario, and `run_program` starts the program itself. `check_plugin` runs the plugin several times,
beside the same work without it, and raises one AssertionError that lists every clause of the
contract that is violated. Its report, printed for `pytest -rP`, also lists the clauses that could
not be proven here, such as all clauses of a plugin that needs a GPU.

A test that calls hooks itself makes their arguments by `make_run(folder, scenario)` and
`make_machine()`; `evidence_of(run)` and `close_run(run)` make the calls that hooks registered by
`run.on_evidence` and `run.on_close`.

An entry point of the group `accel_bench.testing` brings the names. Importing this module raises
ModuleNotFoundError if no distribution has such an entry point.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel_bench.plugins.doors import OWN_DISTRIBUTION, find_entries

__all__ = [
    "CheckReport",
    "Clause",
    "check_plugin",
    "close_run",
    "evidence_of",
    "make_experiment",
    "make_machine",
    "make_run",
    "run_plugin",
    "run_program",
    "run_scenario",
]

if TYPE_CHECKING:
    from accel_bench_testing import (
        CheckReport,
        Clause,
        check_plugin,
        close_run,
        evidence_of,
        make_experiment,
        make_machine,
        make_run,
        run_plugin,
        run_program,
        run_scenario,
    )
else:
    _entry = next(iter(find_entries(__name__, "kit").values()), None)
    if _entry is None:
        raise ModuleNotFoundError(
            f"{__name__}: the kit that proves plugins is not installed; "
            f"`pip install {OWN_DISTRIBUTION}` brings it, in a checkout `pip install -e .`",
            name=__name__,
        )
    _kit = _entry.point.load()
    globals().update({name: getattr(_kit, name) for name in __all__})
