"""The disk cache: a warm one is found again, a cold one is empty and removed."""

import os

import pytest
from accel_bench_compile.cache import CompileCache
from accel_bench_compile.environment import Variables

from accel_bench.scenario.models import Stack
from accel_bench.scenario.uses import Use
from accel_bench.testing import close_run, evidence_of

# What torch says of itself while it imports and traces is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def found(run):
    """Evidence of the cache."""
    evidence = evidence_of(run)
    names = ("cache_asked", "cache", "cache_was_empty", "graph_cache_hits", "graph_cache_misses")
    return tuple(evidence[name] for name in names)


def test_a_second_process_finds_what_the_first_has_compiled_and_a_cold_one_does_not(
    bench, compiled
):
    """One test for both, since inductor's first kernels take half a minute per process."""
    before, eager = dict(os.environ), bench.train(bench.blocks())
    _, run = compiled(bench.blocks())
    assert bench.train(run.model) == pytest.approx(eager, rel=1e-5, abs=1e-6)
    assert evidence_of(run)["graphs"] == 1
    assert found(run) == ("warm", "cold", True, 0, 2)
    close_run(run)
    assert dict(os.environ) == before
    _, run = compiled(bench.blocks())
    assert bench.train(run.model) == pytest.approx(eager, rel=1e-5, abs=1e-6)
    assert found(run) == ("warm", "warm", False, 2, 0)
    assert evidence_of(run)["autograd_cache_hits"] == 1
    close_run(run)
    kept = [*bench.folder.iterdir()]
    _, run = compiled(bench.blocks(), cache="cold")
    assert os.environ["TRITON_CACHE_DIR"].startswith(str(run.folder))
    bench.train(run.model, steps=1)
    assert found(run) == ("cold", "cold", True, 0, 2)
    close_run(run)
    assert [*bench.folder.iterdir()] == kept


def test_stacks_of_other_plugins_keep_caches_of_their_own(bench):
    folders = []
    cudnn, flash = (Use(use="attention", options={"backend": one}) for one in ("cudnn", "flash"))
    for others in ((), (cudnn,), (flash,)):
        run = bench.run()
        stack = Stack(name="s", uses=(*others, Use(use="torch-compile")))
        run.experiment = run.experiment.model_copy(update={"stack": stack})
        variables = Variables()
        folders.append(CompileCache("warm", run, variables).folder)
        variables.put_back()
    assert len(set(folders)) == 3
    run = bench.run()
    assert CompileCache("warm", run, Variables()).folder == folders[0]


@pytest.mark.release
def test_a_graph_that_inductor_is_told_not_to_cache_is_neither_hit_nor_miss(bench, compiled):
    options = {"fx_graph_cache": False}
    _, run = compiled(bench.blocks(), inductor_options=options)
    bench.train(run.model, steps=1)
    assert found(run)[1:] == (None, True, 0, 0)
    assert evidence_of(run)["graphs"] == 1


def test_only_a_warm_cache_of_inductor_asks_for_a_rehearsal(bench):
    for options, wanted in (({}, True), ({"cache": "cold"}, False), ({"backend": "eager"}, False)):
        run = bench.run()
        bench.plugin(**options).prepare_experiment(run)
        assert run.rehearsal is wanted


def test_a_folder_that_the_user_set_is_used_when_warm_and_spared_when_cold(
    bench, tmp_path, monkeypatch
):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "something").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(mine))
    variables = Variables()
    warm = CompileCache("warm", bench.run(), variables)
    assert (warm.folder, warm.set_by, warm.was_empty) == (mine, "environment", False)
    variables.put_back()
    cold = CompileCache("cold", bench.run(), variables)
    assert (cold.set_by, cold.was_empty) == ("plugin", True)
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(cold.folder) != str(mine)
    cold.close()
    variables.put_back()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(mine)
    assert [path.name for path in mine.iterdir()] == ["something"]


@pytest.mark.parametrize(
    "was_empty, counts, said",
    [
        (False, (2, 0, 0), "warm"),
        (False, (2, 1, 0), "partly"),
        (False, (2, 0, 1), "partly"),
        (False, (0, 2, 0), "cold"),
        (True, (1, 2, 0), "cold"),
        (False, (0, 0, 0), None),
        (False, (None, None, 0), None),
    ],
)
def test_what_was_found_is_said_by_what_was_looked_up(bench, was_empty, counts, said):
    variables = Variables()
    cache = CompileCache("warm", bench.run(), variables)
    cache.was_empty = was_empty
    assert cache.evidence(*counts)["cache"] == said
    variables.put_back()
