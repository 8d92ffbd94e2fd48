"""A small model that checkpoints its blocks, and a plugin that plants one regression in it.

The line of each regression ends with the comment PLANTED.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from accel_bench_profile.counting.rank import count_step
from accel_bench_profile.ledger.schema import Ledger
from accel_bench_torch.engine_impl import TorchEngine
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel_bench import Batch, Options, Plugin, Run, TokenCounts, hookimpl, testing

WIDTH, VOCABULARY, SAMPLES, LENGTH = 16, 32, 2, 8


class Output(NamedTuple):
    """What the model returns."""

    loss: torch.Tensor


class Attention(nn.Module):
    """Causal attention with one head."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.query(x).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(query, query, query, is_causal=True)
        return self.output(mixed.squeeze(1))


class Mlp(nn.Module):
    """Two matrices, with an activation that is scaled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.silu(self.up(x))
        hidden = hidden.mul_(0.5)
        return self.down(hidden)


class Block(nn.Module):
    """Attention and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = Mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Tiny(nn.Module):
    """Embedding, two blocks, the first of them checkpointed, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int
    ) -> Output:
        x = self.embedding(input_ids)
        x = checkpoint(self.blocks[0], x, use_reentrant=False)
        x = self.blocks[1](x)
        logits = self.head(x).flatten(0, 1)
        loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
        return Output(loss / num_items_in_batch)


def item(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    x.sum().item()  # PLANTED
    return Mlp.forward(self, x)


def to_host(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = x.detach().cpu()  # PLANTED
    return Mlp.forward(self, x)


def to_list(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = x[0, 0, :2].tolist()  # PLANTED
    return Mlp.forward(self, x)


def nonzero(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.chosen = torch.nonzero(x)  # PLANTED
    return Mlp.forward(self, x)


def by_mask(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.chosen = x[x.isnan()]  # PLANTED
    return Mlp.forward(self, x)


def put_by_mask(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = torch.zeros_like(x)
    self.seen[x > 0] = x.detach().flatten()[: int((x > 0).sum())]  # PLANTED
    return Mlp.forward(self, x)


def repeated(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = x.detach().repeat_interleave(torch.ones(len(x), dtype=int), 0)  # PLANTED
    return Mlp.forward(self, x)


def to_cpu(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = x.detach().to("cpu")  # PLANTED
    return Mlp.forward(self, x)


def shown(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.seen = f"{x}"  # PLANTED
    return Mlp.forward(self, x)


def lost_fusion(self: Attention, x: torch.Tensor) -> torch.Tensor:
    query = self.query(x)
    scores = (query @ query.mT / WIDTH**0.5).softmax(-1)  # PLANTED
    return self.output(scores @ query)


def upcast(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(self.up(x).float()).mul_(0.5)  # PLANTED
    return F.linear(hidden, self.down.weight.float()).to(x.dtype)


def back_and_forth(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    return Mlp.forward(self, x.float().bfloat16())  # PLANTED


def copy(self: Attention, x: torch.Tensor) -> torch.Tensor:
    return Attention.forward(self, x.mT.contiguous().mT)  # PLANTED


def clone(self: Attention, x: torch.Tensor) -> torch.Tensor:
    return Attention.forward(self, x.clone())  # PLANTED


def lost_in_place(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(self.up(x))
    hidden = hidden.mul(0.5)  # PLANTED
    return self.down(hidden)


def doubled_norm(self: Block, x: torch.Tensor) -> torch.Tensor:
    x = x + self.attention(self.norm(self.norm(x)))  # PLANTED
    return x + self.mlp(x)


def extra_matmul(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu((self.up(x) + self.up(x)) / 2)  # PLANTED
    hidden = hidden.mul_(0.5)
    return self.down(hidden)


def transposed_matmul(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(self.up(x))
    hidden = hidden.mul_(0.5)
    return (self.down.weight @ hidden.mT).mT.contiguous() + self.down.bias  # PLANTED


def saved_activation(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(self.up(x))
    hidden = hidden.mul_(0.5)
    return self.down(hidden).tanh()  # PLANTED


def dropout(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    return F.dropout(Mlp.forward(self, x), 0.1)  # PLANTED


def dense_mask(self: Attention, x: torch.Tensor) -> torch.Tensor:
    query = self.query(x).unsqueeze(1)
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()  # PLANTED
    mixed = F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    return self.output(mixed.squeeze(1))


def lost_checkpointing(
    self: Tiny, input_ids: torch.Tensor, labels: torch.Tensor, num_items_in_batch: int
) -> Output:
    x = self.embedding(input_ids)
    x = self.blocks[0](x)
    x = self.blocks[1](x)
    logits = self.head(x).flatten(0, 1)
    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum")
    return Output(loss / num_items_in_batch)


def gathered_twice(self: nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    nn.Embedding.forward(self, ids)  # PLANTED
    return nn.Embedding.forward(self, ids)


def float_logits(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return nn.Linear.forward(self, x).float()  # PLANTED


def reduced_twice(run: Run) -> None:
    """Reduce one gradient over the ranks; the engine's group is made by the test."""

    def reduce(weight: torch.Tensor) -> None:
        torch.distributed.all_reduce(weight.grad)  # PLANTED

    run.model.head.weight.register_post_accumulate_grad_hook(reduce)


def copied_gradients(run: Run) -> None:
    """Copy a gradient while the backward pass goes on."""

    def duplicate(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clone()  # PLANTED

    run.model.head.weight.register_hook(duplicate)


class Loop(torch.optim.SGD):
    """Optimizer that decays each weight by an operation of its own."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.mul_(0.99)  # PLANTED
        super().step()


def slow_optimizer(run: Run) -> None:
    """Replace the optimizer by a slower one."""
    run.optimizer = Loop(run.model.parameters(), lr=0.1, foreach=True)


FORWARDS: dict[str, tuple[str, Callable[..., Any]]] = {
    one.__name__.replace("_", "-"): (module, one)
    for module, functions in {
        "blocks.1.mlp": (
            *(item, to_host, to_list, nonzero, by_mask, put_by_mask, repeated, to_cpu, shown),
            *(upcast, back_and_forth, lost_in_place),
            *(extra_matmul, transposed_matmul, saved_activation, dropout),
        ),
        "blocks.1.attention": (lost_fusion, copy, clone, dense_mask),
        "blocks.1": (doubled_norm,),
        "": (lost_checkpointing,),
        "embedding": (gathered_twice,),
        "head": (float_logits,),
    }.items()
    for one in functions
}
"""Forward functions by regression, and the module that gets each."""

OTHERS: dict[str, tuple[str, Callable[[Run], None]]] = {
    "reduced-twice": ("head", reduced_twice),
    "copied-gradients": ("head", copied_gradients),
    "slow-optimizer": ("", slow_optimizer),
}
"""Other changes by regression, and the module that the difference names."""


class PlantedOptions(Options):
    """Options of `Planted`."""

    regression: str = ""
    """Name of the regression; empty for none."""


class Planted(Plugin[PlantedOptions]):
    """Plugin that plants a regression."""

    Options = PlantedOptions

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Change the model, or what is around it."""
        name = self.options.regression
        if name in FORWARDS:
            module, forward = FORWARDS[name]
            owner = run.model.get_submodule(module)
            owner.forward = types.MethodType(forward, owner)
        elif name:
            OTHERS[name][1](run)


def batches() -> Iterator[Batch]:
    """Yield the same micro-batch for ever."""
    ids = torch.arange(SAMPLES * LENGTH).view(SAMPLES, LENGTH)
    tokens = SAMPLES * LENGTH
    while True:
        yield Batch(
            {"input_ids": ids, "labels": ids}, SAMPLES, TokenCounts(tokens, tokens, tokens), tokens
        )


def ledger_of(
    folder: Path, regression: str = "", prepare: Callable[[Run], None] = lambda run: None
) -> Ledger:
    """Return the ledger of the model with a regression; `prepare` gets the run after that."""
    torch.manual_seed(0)
    run = testing.make_run(folder, {"data": {"sequence_length": LENGTH}}, model=Tiny().bfloat16())
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1, foreach=True)
    run.batches = batches()
    Planted(PlantedOptions(regression=regression), "planted").accelerate_model(run)
    prepare(run)
    found = count_step(run, TorchEngine(run).run)
    stack = regression or "baseline"
    return Ledger(
        scenario="tiny",
        stack=stack,
        device="cpu",
        ranks=1,
        entries=found.entries,
        left_out=found.left_out,
    )


def viewed(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    torch.tensor(2.0)
    return Mlp.forward(self, x.view(x.shape))


def free(run: Run) -> None:
    """Have an MLP take a view and wrap a number, which cost nothing."""
    mlp = run.model.blocks[1].mlp
    mlp.forward = types.MethodType(viewed, mlp)


def breaking(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    x = x * (2 if self.calls % 2 else 1)
    torch._dynamo.graph_break()  # PLANTED
    return Mlp.forward(self, x)


def compiled(regression: Callable[..., Any] | None, backend: str) -> Callable[[Run], None]:
    """Return a function that compiles the second MLP, optionally with another forward."""

    def prepare(run: Run) -> None:
        torch._dynamo.reset()
        mlp = run.model.blocks[1].mlp
        if regression is not None:
            mlp.forward = types.MethodType(regression, mlp)
        mlp.compile(backend=backend)

    return prepare


def unfused(self: Mlp, x: torch.Tensor) -> torch.Tensor:
    hidden = F.silu(self.up(x))
    hidden = hidden.mul_(0.5)
    return self.down(hidden.cumsum(-1))  # PLANTED
