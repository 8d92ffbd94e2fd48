"""What changes after the first step, and steps and rates that are not as asked, are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accel_bench_torch.optimizers_impl import build

from accel_bench import Batch, Run, TokenCounts
from accel_bench.effective import OptimizerProgress
from accel_bench.errors import InvalidRunError
from accel_bench.job import Job
from accel_bench.modeling.compilation import reset_compiler
from accel_bench.plugins.active import ActivePlugins
from accel_bench.worker.clocks import HostClock
from accel_bench.worker.heartbeat import Heartbeat
from accel_bench.worker.measurement import AroundWindow, take_steps
from accel_bench.worker.record import RankRecord
from accel_bench.worker.stopwatch import WindowStopwatch
from accel_bench.worker.verify.effective import differences, read_effective
from accel_bench.worker.verify.gradient_flow import FirstStepProbe
from accel_bench.worker.verify.optimizer_steps import (
    OptimizerStepCounter,
    Reading,
    node_reasons,
    read_progress,
)

WARMUP, STEPS = 2, 4
BATCH = Batch({}, 1, TokenCounts(processed=3, real=3, supervised=3), 3)
RATE = 1e-2

Cheat = Callable[[Run, int], Any]


class Loop:
    """A plain training loop; `cheat` is called before each optimizer step, and may skip it."""

    def __init__(
        self, run: Run, cheat: Cheat, scaler: torch.amp.GradScaler | None, rows: int
    ) -> None:
        self.run_, self.cheat, self.scaler, self.rows = run, cheat, scaler, rows

    def run(self, stopwatch: WindowStopwatch) -> None:
        torch.manual_seed(0)
        step = 0
        while stopwatch.running:
            loss = self.run_.model(torch.randn(self.rows, 4)).square().sum()
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            if self.cheat(self.run_, step) is not False:
                self._step()
            self.run_.optimizer.zero_grad()
            stopwatch.lap([BATCH], loss.detach())
            step += 1

    def _step(self) -> None:
        if self.scaler is None:
            self.run_.optimizer.step()
            return
        self.scaler.step(self.run_.optimizer)
        self.scaler.update()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    ).train()


@pytest.fixture
def train(make_run: Callable[..., Run], tmp_path: Path) -> Callable[..., RankRecord]:
    """Train a small model through the product's own warm-up, window and checks."""

    def steps(
        cheat: Cheat = lambda run, step: None,
        optimizer: Callable[[list[torch.nn.Parameter]], Any] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        prepare: Callable[[Run], None] = lambda run: None,
        rows: int = 3,
        **train: Any,
    ) -> RankRecord:
        run = make_run(train={"learning_rate": RATE, **train}, resources={"device": "cpu"})
        run.model = run.unwrapped_model = model()
        prepare(run)
        parameters = list(run.model.parameters())
        run.optimizer = (optimizer or (lambda p: torch.optim.AdamW(p, lr=RATE)))(parameters)
        heartbeat, record = Heartbeat(tmp_path / "beat"), RankRecord()
        folders = {"folder": str(tmp_path), "cache_folder": str(tmp_path)}
        job = Job(run_id="run", experiment=run.experiment, **folders)
        window = AroundWindow(job, ActivePlugins([]), run, heartbeat, record)
        stopwatch = WindowStopwatch(
            HostClock(), heartbeat, warmup=WARMUP, steps=STEPS,
            before_window=window.before, after_window=window.after, stages=window.stages,
        )  # fmt: skip
        take_steps(Loop(run, cheat, scaler, rows), stopwatch, window)
        window.check_steps_after()
        return record

    return steps


def after_warmup(change: Callable[[Run], Any]) -> Cheat:
    """Do it once, before the second step of the window."""
    return lambda run, step: change(run) and None if step == WARMUP + 1 else None


def progress(record: RankRecord) -> OptimizerProgress:
    assert record.effective.optimizer_progress is not None
    return record.effective.optimizer_progress


OPTIMIZERS: dict[str, Callable[[list[torch.nn.Parameter]], Any]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=RATE),
    "foreach": lambda p: torch.optim.AdamW(p, lr=RATE, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=RATE, fused=True),
    "fused-sgd": lambda p: torch.optim.SGD(p, lr=RATE, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=RATE),
    "momentum": lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=RATE),
    "tensor-rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(RATE), foreach=False),
    "in-backward": lambda p: build("AdamW", p, RATE, {"optimizer_in_backward": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_that_takes_all_steps_passes(train: Any, name: str) -> None:
    record = train(optimizer=OPTIMIZERS[name])
    assert record.degraded == []
    found = progress(record)
    witnesses = {found.counted_steps, found.observed_steps} - {None}
    assert witnesses <= {WARMUP + STEPS} == {found.steps}
    assert bool(witnesses) is (name != "fused-sgd")
    assert set(found.learning_rates) == {"0.01"}
    assert set(found.state_dtypes) <= {"float32"}
    rules = {*found.hyperparameters} - {"maximize"}
    assert rules and not rules & {"foreach", "fused", "capturable", "lr", "weight_decay"}


@pytest.mark.parametrize("name", ["adamw", "fused", "sgd", "momentum", "adafactor", "in-backward"])
def test_a_stack_that_steps_every_second_time_is_named(train: Any, name: str) -> None:
    """Within the backward pass the steps to skip are those of the small optimizers."""

    def cheat(run: Run, step: int) -> bool:
        if name == "in-backward" and step == 0:
            for part in run.optimizer.parts.values():
                part.step = every_second(part.step)
        return name == "in-backward" or step % 2 == 0

    with pytest.raises(InvalidRunError, match="the optimizer took 3 of 6 steps"):
        train(cheat, OPTIMIZERS[name])


class TwoOptimizers:
    """Two in the place of one, which shows the groups of the first alone."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        self.parts = [
            torch.optim.AdamW(parameters[:2], lr=RATE),
            torch.optim.AdamW(parameters[2:], lr=RATE / 100),
        ]
        self.param_groups = self.parts[0].param_groups

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad()


def test_the_rates_of_a_second_optimizer_are_read_too(train: Any) -> None:
    record = train(optimizer=TwoOptimizers)
    assert progress(record).learning_rates == {"0.01": 2, "0.0001": 2}
    (reason,) = record.degraded
    assert reason.startswith("learning rate 0.0001 for 2 of 4 tensors in force")


def every_second(step: Callable[[], Any]) -> Callable[[], Any]:
    calls = iter(range(100))
    return lambda: step() if next(calls) % 2 == 1 else None


def test_a_stack_that_takes_only_the_first_step_is_named(train: Any) -> None:
    with pytest.raises(InvalidRunError, match="the optimizer took 1 of 6 steps"):
        train(lambda run, step: step == 0)


IN_STEPS = sorted(set(OPTIMIZERS) - {"in-backward"})


def ahead(window: bool) -> Cheat:
    """Take the window's steps in the last one of the warm-up too; in the window itself if so."""

    def cheat(run: Run, step: int) -> bool:
        for _ in range(STEPS if step == WARMUP - 1 else 0):
            run.optimizer.step()
        return window or step < WARMUP

    return cheat


@pytest.mark.parametrize("name", IN_STEPS)
def test_a_window_whose_steps_were_taken_before_it_is_named(train: Any, name: str) -> None:
    with pytest.raises(InvalidRunError, match="the optimizer took 0 of 4 steps of the window"):
        train(ahead(window=False), OPTIMIZERS[name])


@pytest.mark.parametrize("name", [name for name in IN_STEPS if name != "fused-sgd"])
def test_steps_of_a_window_that_were_taken_twice_are_named(train: Any, name: str) -> None:
    with pytest.raises(InvalidRunError, match="took 5 steps in 1 of the engine before the window"):
        train(ahead(window=True), OPTIMIZERS[name])


def test_an_optimizer_that_writes_weights_twice_at_times_takes_no_more_steps(train: Any) -> None:
    """As one that averages them with slow ones does."""

    def write(run: Run, step: int) -> None:
        for parameter in run.model.parameters() if step % 2 else ():
            parameter.detach().mul_(1.0)

    assert train(write, OPTIMIZERS["sgd"]).degraded == []


def readings(nodes: int, steps: int = STEPS) -> tuple[Reading, Reading]:
    """Return those of a window in which autograd made so many nodes."""
    return Reading(0, 0, [], [], nodes=7), Reading(steps, 0, [], [], nodes=7 + nodes)


@pytest.mark.parametrize(
    ("warmup", "window", "later", "reason"),
    [
        ([900, 100], 400, 100, ""),
        ([100], 300, 100, ""),
        ([900, 100], 400, 300, ""),  # Some other step has as few.
        ([100, 100], 200, 100, "recorded 50 operations in a step of the window, and 100 in each"),
        ([100, 0], 0, 0, "recorded no operation in a step after the window"),
        ([0, 0], 0, 0, ""),  # Another thread computes, whose operations are not seen.
    ],
)
def test_a_window_in_which_autograd_saw_less_than_around_it_is_named(
    warmup: list[int], window: int, later: int, reason: str
) -> None:
    found = [*node_reasons(warmup, *readings(window), [later + 1, later] if later else [0])]
    assert len(found) == bool(reason)
    assert reason in "".join(found)


def test_a_graph_of_a_device_is_replayed_without_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Graph:
        """One that a device without CUDA can make."""

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.xpu, "XPUGraph", Graph, raising=False)
    graph = Graph()
    assert [*node_reasons([100, 0], *readings(0), [0, 0])] == []
    del graph
    assert [*node_reasons([100, 0], *readings(0), [0, 0])] != []


def test_steps_that_a_gradient_scaler_skips_are_no_reason(train: Any) -> None:
    """The scale starts so large that the first two steps overflow, and shrinks by half."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-70)
    record = train(scaler=scaler, precision="fp16-autocast")
    found = progress(record)
    assert found.counted_steps == found.observed_steps == found.steps - 1
    assert [reason for reason in record.degraded if "steps" in reason] == []


def test_a_scaler_excuses_no_step_that_it_has_not_skipped(train: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with pytest.raises(InvalidRunError, match="the optimizer took 3 of 6 steps"):
        train(lambda run, step: step % 2 == 0, scaler=scaler, precision="fp16-autocast")


def test_weights_that_change_without_their_counters_leave_those_no_witness(train: Any) -> None:
    """As under a CUDA graph: the step is replayed, and autograd knows nothing of it."""

    def replay(run: Run, step: int) -> bool:
        if step == 0:
            return True
        for parameter in run.model.parameters():
            parameter.detach().numpy()[...] -= RATE
        return False

    record = train(replay, OPTIMIZERS["sgd"])
    assert progress(record).observed_steps is None
    assert record.degraded == []


def test_what_is_no_number_under_the_key_of_a_counter_counts_nothing() -> None:
    states = {0: {"step": torch.zeros(3)}, 1: {"step": None}, 2: {"step": torch.tensor(4.0)}}
    for state, counted in ((states, 4), ({0: states[0]}, None)):
        optimizer = SimpleNamespace(state=state, param_groups=[])
        assert read_progress([optimizer], 4, OptimizerStepCounter([])).counted_steps == counted


def test_a_sparse_gradient_is_read_in_the_first_step(make_run: Callable[..., Run]) -> None:
    run = make_run(resources={"device": "cpu"})
    run.model = run.unwrapped_model = torch.nn.Embedding(9, 4, sparse=True)
    probe = FirstStepProbe(run)
    run.model(torch.tensor([1, 2])).square().sum().backward()
    torch.optim.SGD(run.model.parameters(), lr=RATE).step()
    assert probe.flow is not None
    assert probe.flow.parameters_changed


@torch.no_grad()
@pytest.mark.parametrize(("warmup", "steps"), [(1, None), (2, 7)])
def test_what_an_engine_writes_before_its_first_step_makes_no_step_larger(
    warmup: int, steps: int | None
) -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    counter = OptimizerStepCounter([weight])
    weight.add_(1)
    for step in range(6):
        weight.add_(1)
        if step < warmup:
            counter.see_step()
    assert counter.steps() == steps


def test_numbers_are_read_of_every_group_and_states_as_they_are_stored() -> None:
    parameters = [torch.nn.Parameter(torch.ones(4)) for _ in range(3)]
    groups = [{"params": parameters[:1], "betas": (0.9, 0.95)}, {"params": parameters[1:]}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, maximize=True)
    for parameter in parameters:
        parameter.grad = torch.ones(4)
    optimizer.step()
    state = optimizer.state[parameters[0]]
    state["exp_avg"] = state["exp_avg"].bfloat16()
    found = read_progress([optimizer, optimizer], 1, OptimizerStepCounter([]))
    assert found.hyperparameters["betas"] == {"0.9, 0.999": 2, "0.9, 0.95": 1}
    assert found.hyperparameters["maximize"] == {"true": 3}
    assert found.hyperparameters["eps"] == {"1e-08": 3}
    assert found.state_dtypes == {"float32": 20, "bfloat16": 4}


def set_rate(rate: float, groups: slice = slice(None)) -> Callable[[Run], Any]:
    def change(run: Run) -> None:
        for group in run.optimizer.param_groups[groups]:
            group["lr"] = rate

    return change


def test_a_rate_of_zero_is_invalid(train: Any) -> None:
    with pytest.raises(InvalidRunError, match=r"learning rate 0 in force, the scenario says 0\.01"):
        train(after_warmup(set_rate(0.0)))


def test_a_tenth_of_the_rate_is_a_reason(train: Any) -> None:
    record = train(lambda run, step: set_rate(RATE / 10)(run))
    assert record.degraded == ["learning rate 0.001 in force, the scenario says 0.01"]


def test_a_rate_of_some_tensors_is_counted(train: Any) -> None:
    def groups(parameters: list[torch.nn.Parameter]) -> Any:
        return torch.optim.SGD([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=RATE)

    record = train(after_warmup(set_rate(0.0, slice(1))), groups)
    assert record.degraded == [
        "learning rate 0 for 1 of 4 tensors in force, the scenario says 0.01"
    ]


def test_the_optimizer_that_stepped_counts_and_not_the_one_that_is_shown(train: Any) -> None:
    """An engine may step another optimizer than the one that the run holds."""
    hidden: list[torch.optim.Optimizer] = []

    def swap(run: Run, step: int) -> bool:
        hidden[:] = hidden or [torch.optim.SGD(run.model.parameters(), lr=RATE / 2)]
        hidden[0].step()
        return False

    record = train(swap)
    assert record.degraded == ["learning rate 0.005 in force, the scenario says 0.01"]


def double() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(6, dtype=torch.float64))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda run: run.model.eval(),
            "model.training was True before the window and False after|not in training",
        ),
        (
            lambda run: run.model[1].eval(),
            r"1 module \(1\) left training mode after the first step",
        ),
        (lambda run: setattr(run.model[1], "p", 0.0), r"dropout was 0.1 \(1\) .* and 0 after it"),
        (
            lambda run: run.model[0].requires_grad_(False),
            r"2 of 4 tensors \(0.bias and 0.weight\) that trained in the first step no longer do",
        ),
        (
            lambda run: run.model[0].register_parameter("more", double()),
            r"weights was float32 \(30\) before the window and float32 \(30\), float64 \(6\) after",
        ),
    ],
    ids=["training", "one module", "dropout", "frozen", "dtype"],
)
@pytest.mark.parametrize("step", [1, WARMUP + STEPS - 1], ids=["warm-up", "window"])
def test_what_decides_what_is_trained_may_not_change_after_the_first_step(
    train: Any, change: Callable[[Run], Any], reason: str, step: int
) -> None:
    def cheat(run: Run, number: int) -> None:
        if number == step:
            change(run)

    with pytest.raises(InvalidRunError, match=reason):
        train(cheat)


def test_what_decides_the_speed_is_a_reason_when_it_changes(train: Any) -> None:
    threads = torch.get_num_threads()

    def change(run: Run) -> None:
        torch.set_num_threads(threads + 1)
        torch.set_float32_matmul_precision("medium")
        run.model[2].forward = lambda x: x

    try:
        record = train(after_warmup(change))
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("highest")
    assert record.degraded == [
        f"threads was {threads} before the window and {threads + 1} after it",
        "matmul precision was highest before the window and medium after it",
        "the forward of 1 module (2) was replaced while it trained",
    ]


def low(
    layer: torch.nn.Linear, dtype: torch.dtype = torch.bfloat16
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward that multiplies in another dtype and answers in float32."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        weight, bias = layer.weight.to(dtype), layer.bias.to(dtype)
        return torch.nn.functional.linear(x.to(dtype), weight, bias).float()

    return forward


class Rounded(torch.autograd.Function):
    """A product with a weight of few bits, as kernels of 8 bits compute it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ (weight * 64).round().t() / 64

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight, gradients[0].t() @ x


def autocast(layer: torch.nn.Linear) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a forward under autocast."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.nn.functional.linear(x, layer.weight, layer.bias).float()

    return forward


def since_the_second_call(layer: torch.nn.Linear, later: Callable[..., Any]) -> None:
    """Give a layer another forward, which acts from its second call on."""
    plain, calls = layer.forward, iter(range(100))

    def forward(x: torch.Tensor) -> torch.Tensor:
        chosen = later if next(calls) else plain
        return chosen(x)

    layer.forward = forward


@pytest.mark.parametrize(
    ("make", "refused", "reason"),
    [
        (low, True, "2 of 2 linear modules compute in bfloat16 after the window, and did in float"),
        (autocast, True, "2 of 2 linear modules compute in bfloat16 after the window"),
        (
            lambda layer: lambda x: Rounded.apply(x, layer.weight) + layer.bias,
            False,
            "2 of 2 linear modules compute otherwise after the window than in the first step, by "
            "AddBackward0 and RoundedBackward",
        ),
    ],
    ids=["bfloat16", "autocast", "8 bits"],
)
def test_a_precision_that_is_lowered_after_the_first_forward_is_named(
    train: Any, make: Callable[..., Any], refused: bool, reason: str
) -> None:
    def prepare(run: Run) -> None:
        for layer in (run.model[0], run.model[3]):
            since_the_second_call(layer, make(layer))

    if refused:
        with pytest.raises(InvalidRunError, match=reason):
            train(prepare=prepare)
    else:
        assert any(reason in one for one in train(prepare=prepare).degraded)


def test_a_call_of_one_s_own_in_the_place_of_compiled_code_hides_nothing(train: Any) -> None:
    def prepare(run: Run) -> None:
        run.model[0]._compiled_call_impl = low(run.model[0])

    record = train(prepare=prepare)
    assert record.effective.matmul_dtypes == {"bfloat16": 1, "float32": 1}
    found = " ".join(record.degraded)
    assert "1 of 2 linear modules compute in bfloat16, the scenario says float32" in found
    assert "1 module (0) have a `_compiled_call_impl` that torch.compile has not made" in found


def test_modules_that_were_to_be_compiled_and_are_not_are_named(train: Any) -> None:
    def prepare(run: Run) -> None:
        run.model[0].compile(backend="eager")

    reset_compiler()
    with torch.compiler.set_stance("force_eager"):
        record = train(prepare=prepare)
    assert record.degraded == ["1 module were to be compiled, and torch's compiler made no graph"]


def ends(run: Run) -> None:
    """Let a dropout that looks like one of torch's drop nothing from its second call on."""
    since_the_second_call(run.model[1], lambda x: x)


def draws_nothing(run: Run) -> None:
    """Let a function of torch drop nothing from its second call on."""
    run.model[1] = Functional()
    plain, calls = torch.nn.functional.dropout, iter(range(100))
    pick: Callable[..., Any] = lambda x, *more, **words: (  # noqa: E731
        plain(x, *more, **words) if not next(calls) else x
    )
    run.on_close(lambda: setattr(torch.nn.functional, "dropout", plain))
    torch.nn.functional.dropout = pick


class Functional(torch.nn.Module):
    """Dropout by a function, as attention has it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_dropout = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, self.attention_dropout, self.training)


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (ends, "1 of 1 modules that dropped elements in the first step drop none after the window"),
        (draws_nothing, "no random number was drawn in a forward pass after the window, and some"),
    ],
    ids=["module", "function"],
)
def test_dropout_that_is_off_after_the_first_forward_is_named(
    train: Any, prepare: Callable[[Run], None], reason: str
) -> None:
    plain = torch.nn.functional.dropout
    try:
        with pytest.raises(InvalidRunError, match=reason):
            train(prepare=prepare, rows=200)
    finally:
        torch.nn.functional.dropout = plain


def test_layers_that_compute_in_another_dtype_are_counted_also_behind_a_cast(
    make_run: Callable[..., Run],
) -> None:
    """Half of the layers compute in bfloat16, and the output of each is float32."""
    run = make_run(resources={"device": "cpu"})
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    for layer in layers[:2]:
        layer.forward = low(layer)
    run.model = run.unwrapped_model = layers.train()
    run.optimizer = torch.optim.SGD(layers.parameters(), lr=RATE)
    probe = FirstStepProbe(run)
    layers(torch.ones(3, 4)).sum().backward()
    run.optimizer.step()
    effective = read_effective(run, probe)
    assert effective.matmul_dtypes == {"bfloat16": 2, "float32": 2}
    assert differences(run, effective) == (
        ["2 of 4 linear modules compute in bfloat16, the scenario says float32"],
        [],
    )
