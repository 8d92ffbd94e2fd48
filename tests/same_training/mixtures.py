"""Stacks of a mixture of experts that train otherwise; each takes a first step that is sound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from same_training.changes import after_each_step

from accel_bench import Options, Plugin, Run, hookimpl


class FreezesAnExpert(Plugin[Options]):
    """One expert of each layer is left out of what is updated."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        hold(run, "experts", lambda now, before: now[0].copy_(before[0]))


class SlowsExperts(Plugin[Options]):
    """Experts are given three quarters of the learning rate."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        hold(run, "experts", lambda now, before: now.lerp_(before, 0.25))


class FreezesTheRouters(Plugin[Options]):
    """Routers are taken for parts of a frozen base."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        hold(run, "router", lambda now, before: now.copy_(before))


class ForgetsTheCausalMask(Plugin[Options]):
    """Attention looks at all tokens."""

    @hookimpl
    def start_metrics(self, run: Run) -> None:
        import torch

        plain = torch.nn.functional.scaled_dot_product_attention

        def attend(q: Any, k: Any, v: Any, **words: Any) -> Any:
            return plain(q, k, v, **{**words, "attn_mask": None, "is_causal": False})

        torch.nn.functional.scaled_dot_product_attention = attend
        run.on_close(lambda: setattr(torch.nn.functional, plain.__name__, plain))


def hold(run: Run, part: str, change: Callable[[Any, Any], object]) -> None:
    """Change the parameters of a part after each step, given what they were before it."""
    import torch

    held = [p for name, p in run.model.named_parameters() if f".{part}." in name]
    kept = [p.detach().clone() for p in held]

    @torch.no_grad()
    def after() -> None:
        for now, before in zip(held, kept, strict=True):
            change(now, before)
            before.copy_(now)

    after_each_step(run, after)
