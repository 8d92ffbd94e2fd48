"""CUDA graphs: steps are optimizer steps, and runs without graphs are degraded."""

from types import SimpleNamespace

import pytest
import torch
from accel_bench_compile.cudagraphs import Capture, Recordings, StepMarker, read_recordings

from accel_bench import Window
from accel_bench.testing import close_run, evidence_of

# What torch says of itself while it imports and traces is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


def marks() -> int:
    """Return the number of marked steps since the last reset."""
    from torch._inductor.cudagraph_trees import MarkStepBox

    return -MarkStepBox.mark_step_counter


@pytest.mark.parametrize("scope", ["block", "model"])
def test_micro_batches_of_an_optimizer_step_are_one_step(bench, scope):
    model = bench.blocks()
    for module in model.layers if scope == "block" else [model]:
        module.compile(backend="eager")
    marker = StepMarker(model)
    try:
        bench.train(model, micro_batches=3, steps=2)
        assert (marker.steps, marks()) == (2, 2)
    finally:
        marker.remove()
    bench.train(model, steps=1)
    assert marks() == 0
    torch.compiler.reset()


def test_a_plugin_that_is_closed_marks_no_steps_any_more(bench, compiled):
    model = bench.blocks()
    _, run = compiled(model, backend="cudagraphs")
    bench.train(model)
    assert marks() == 2
    close_run(run)
    bench.train(model)
    assert marks() == 0


def test_without_cudagraphs_nothing_is_marked(bench, compiled):
    model = bench.blocks()
    compiled(model, backend="eager")
    bench.train(model)
    assert marks() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "reduce-overhead"},
        {"backend": "cudagraphs"},
        {"inductor_options": {"triton.cudagraphs": True}},
    ],
)
def test_what_is_nothing_without_a_gpu_is_refused_on_a_cpu(bench, options):
    reasons = bench.plugin(**options).check_scenario(bench.run().experiment, bench.machine())
    assert "CUDA graphs need a GPU; on a CPU use mode: default" in list(reasons)


def test_autotuning_has_its_worth_on_a_cpu_too(bench):
    plugin = bench.plugin(mode="max-autotune")
    reasons = list(plugin.check_scenario(bench.run().experiment, bench.machine()))
    assert not any("CUDA graphs" in reason for reason in reasons)


def test_asked_for_and_not_recorded_is_degraded_with_the_reason(bench, compiled):
    plugin, run = compiled(bench.blocks(), backend="cudagraphs")
    plugin._capture = Capture(0)
    plugin.start_metrics(run)
    bench.train(run.model)
    (metric,) = plugin.finish_metrics(run, Window(started=0, ended=1))
    assert (metric.name, metric.value, metric.degrades) == ("cuda_graphs", 0, True)
    assert "none was recorded" in metric.reason
    assert evidence_of(run)["cudagraphs"]["recorded"] == 0


def test_where_none_were_asked_for_there_is_no_metric(bench, compiled):
    plugin, run = compiled(bench.blocks(), backend="eager")
    plugin.start_metrics(run)
    assert list(plugin.finish_metrics(run, Window(started=0, ended=1))) == []
    assert evidence_of(run)["cudagraphs"] is None


@pytest.mark.parametrize(
    "before, after, said",
    [
        (Recordings(4, 0), Recordings(4, 4), ""),
        (Recordings(4, 4), Recordings(6, 4), "2 CUDA graphs were recorded inside the window"),
        (Recordings(4, 4), Recordings(4, 0), "replayed no CUDA graph"),
        (None, None, "does not tell"),
    ],
)
def test_a_window_is_that_of_cudagraphs_when_all_are_there_and_are_replayed(before, after, said):
    capture = Capture(0)
    capture._before, capture._after = before, after
    problem = capture.problem()
    assert said in problem
    assert bool(problem) is bool(said)


def test_recordings_are_counted_over_the_whole_tree(monkeypatch):
    from torch._inductor import cudagraph_trees

    # A tree of torch's own can only be made with a GPU.
    leaf = SimpleNamespace(children={})
    inner = SimpleNamespace(children={0: [leaf], 1: [leaf, leaf]})
    manager = SimpleNamespace(
        get_roots=lambda: iter([inner, leaf]),
        path_state=cudagraph_trees.ExecutionState.EXECUTION,
        current_node=SimpleNamespace(_path_from_root=iter([inner, leaf])),
    )
    monkeypatch.setattr(cudagraph_trees, "get_manager", lambda *_, **__: manager)
    assert read_recordings(0) == Recordings(graphs=5, in_last_step=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="records graphs on a GPU")
@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("scope", ["block", "model"])
def test_graphs_are_recorded_once_and_replayed_with_the_loss_of_eager(scope, checkpointed):
    from accel_bench.testing import run_plugin

    work = {"train": {"gradient_accumulation": 2, "gradient_checkpointing": checkpointed}}
    options = {"scenario": work, "device": "cuda", "scope": scope}
    plain = run_plugin("torch-compile", **options, backend="eager")
    result = run_plugin("torch-compile", **options, mode="reduce-overhead")
    (rank,) = result.ranks
    found = rank.evidence["torch-compile"]["cudagraphs"]
    assert (found["recorded"] > 0, found["recorded_in_window"]) == (True, 0)
    assert found["replayed_in_last_step"] > 0
    eager = [sample.loss for sample in plain.ranks[0].window.samples]
    assert [sample.loss for sample in rank.window.samples] == pytest.approx(eager, rel=1e-3)
