"""Accelerations that train the same: other sums, kernels, layouts and orders of the same work."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from same_training.changes import PlainLoop, blocks, causal_model, linears, trained

from accel_bench import Batch, Options, Plugin, Run, hookimpl

SETTINGS: dict[str, dict[str, Any]] = {
    "autocast": {"train.precision": "bf16-autocast"},
    "eager-attention": {"model.attention": "eager"},
    "half-micro-batches": {"train.micro_batch_size": 1, "train.gradient_accumulation": 4},
    "one-micro-batch": {"train.micro_batch_size": 4, "train.gradient_accumulation": 1},
    "in-backward": {
        "train.micro_batch_size": 4,
        "train.gradient_accumulation": 1,
        "optimizer.optimizer_in_backward": True,
    },
    "foreach": {"optimizer.foreach": True},
    "for-loop": {"optimizer.foreach": False},
    "fused-step": {"optimizer.fused": True},
    "hf-trainer": {"engine.use": "hf-trainer"},
    "longest": {"data.padding": "longest"},
    "two-threads": {"resources.threads": 2},
}
"""Stacks that set what the scenario knows, and use no plugin."""

SHIPPED: dict[str, list[Any]] = {
    "recomputed": ["activation-checkpointing"],
    "selective": [{"use": "activation-checkpointing", "policy": "selective"}],
    "math-kernel": [{"use": "attention", "backends": ["math"]}],
    "compiled": [{"use": "torch-compile", "backend": "aot_eager"}],
    "padding-free": ["padding-free"],
}
"""Stacks of plugins that we ship."""


class SumsInHalves(Plugin[Options]):
    """Add each matmul up in two halves."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        from torch.nn.functional import linear

        def halves(x: Any, module: Any) -> Any:
            middle, weight = module.in_features // 2, module.weight
            first = linear(x[..., :middle], weight[:, :middle], module.bias)
            return first + linear(x[..., middle:], weight[:, middle:])

        for module in linears(run):
            module.forward = lambda x, module=module: halves(x, module)


class Bfloat16Linears(Plugin[Options]):
    """Compute each matmul in bfloat16, with weights that stay in float32."""

    loss_tolerance = 2e-2
    update_tolerance = 0.1

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        def rounded(x: Any, module: Any) -> Any:
            half = torch.bfloat16
            out = torch.nn.functional.linear(x.to(half), module.weight.to(half))
            return out.to(x.dtype) if module.bias is None else out.to(x.dtype) + module.bias

        for module in linears(run):
            module.forward = lambda x, module=module: rounded(x, module)


class ContiguousTranspose(Plugin[Options]):
    """Store each matrix by columns, as some kernels want it."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        for parameter in run.model.parameters():
            if parameter.ndim == 2:
                parameter.data = parameter.data.t().contiguous().t()


class MappedWeights(Plugin[Options]):
    """Keep the weights in a file that is mapped into memory."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        for number, parameter in enumerate(run.model.parameters()):
            path, size = str(run.folder / f"{number}.bin"), parameter.numel()
            mapped = torch.from_file(path, shared=True, size=size, dtype=parameter.dtype)
            parameter.data = mapped.view_as(parameter).copy_(parameter.data)


class FlatWeights(Plugin[Options]):
    """Keep all trained weights in one buffer, of which parameters are views."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        parameters = trained(run)
        flat = torch.cat([parameter.data.flatten() for parameter in parameters])
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.data = part.view_as(parameter)


class FlatGradients(PlainLoop):
    """Accumulate gradients in one buffer that is zeroed in one call."""

    def change(self, run: Run) -> None:
        import torch

        parameters = trained(run)
        flat = torch.zeros(sum(parameter.numel() for parameter in parameters))
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        run.optimizer.zero_grad = lambda *_, **__: flat.zero_()


class ZeroesInPlace(PlainLoop):
    """Fill gradients with zeros in the place of freeing them."""

    def change(self, run: Run) -> None:
        zero = run.optimizer.zero_grad
        run.optimizer.zero_grad = lambda *_, **__: zero(set_to_none=False)


class StepsInBackward(PlainLoop):
    """Update each tensor as soon as its last micro-batch has added to its gradient."""

    def change(self, run: Run) -> None:
        import torch

        every, rate = run.scenario.train.gradient_accumulation, run.scenario.train.learning_rate
        update: dict[Any, Any] = {}

        def use(parameter: Any, counter: Iterator[int]) -> None:
            if next(counter) % every == 0:
                update[parameter].step()
                parameter.grad = None

        for parameter in trained(run):
            update[parameter] = torch.optim.AdamW([parameter], lr=rate, weight_decay=0.01)
            counter = itertools.count(1)
            parameter.register_post_accumulate_grad_hook(lambda p, c=counter: use(p, c))


class AdamwByHand(Plugin[Options]):
    """Write AdamW as formulas, one tensor after the other."""

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        import torch

        class ByHand(torch.optim.Optimizer):
            def step(self, closure: Any = None) -> None:
                for group in self.param_groups:
                    for p in group["params"]:
                        if p.grad is not None:
                            self.update(p, group["lr"])

            @torch.no_grad()
            def update(self, p: Any, rate: float) -> None:
                state = self.state[p]
                n = state["step"] = state.get("step", 0) + 1
                first = state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * p.grad
                second = state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * p.grad**2
                scale = (second / (1 - 0.999**n)).sqrt() + 1e-8
                p -= rate * (0.01 * p + first / (1 - 0.9**n) / scale)

        return ByHand(trained(run), {"lr": run.scenario.train.learning_rate})


class ChunkedCrossEntropy(Plugin[Options]):
    """Compute the loss of a few rows of logits at a time."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        from torch.nn.functional import cross_entropy

        def chunked(logits: Any, labels: Any, num_items_in_batch: Any = None, **_: Any) -> Any:
            rows, wanted = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
            pairs = zip(rows.split(8), wanted.split(8), strict=True)
            total = sum(cross_entropy(row, want, reduction="sum") for row, want in pairs)
            return total / num_items_in_batch

        causal_model(run).loss_function = chunked


class DoubleLoss(Plugin[Options]):
    """Compute the loss in float64."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        model = causal_model(run)
        plain = model.loss_function
        model.loss_function = lambda logits, labels, **words: plain(
            logits.double(), labels, **words
        ).float()


class FusedNorms(Plugin[Options]):
    """Normalize by torch's one call."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        from torch.nn.functional import rms_norm

        for module in run.model.modules():
            if type(module).__name__ == "LlamaRMSNorm":
                module.forward = lambda x, m=module: rms_norm(
                    x, m.weight.shape, m.weight, m.variance_epsilon
                )


class FusedQueriesKeysValues(Plugin[Options]):
    """Compute queries, keys and values by one matmul with the same parameters."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        for block in blocks(run):
            self._fuse([getattr(block.self_attn, f"{name}_proj") for name in "qkv"])

    def _fuse(self, projections: list[Any]) -> None:
        import torch

        parts = [getattr(module, "base_layer", module) for module in projections]
        waiting: list[Any] = []

        def forward(x: Any) -> Any:
            if not waiting:
                weight = torch.cat([part.weight for part in parts])
                sizes = [part.out_features for part in parts]
                waiting.extend(torch.nn.functional.linear(x, weight).split(sizes, dim=-1))
            return waiting.pop(0)

        for part in parts:
            part.forward = forward


class RecomputesActivations(Plugin[Options]):
    """Compute the feed-forward parts again in the backward pass."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        from torch.utils.checkpoint import checkpoint

        for block in blocks(run):
            plain = block.mlp.forward
            block.mlp.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)


class OffloadsActivations(Plugin[Options]):
    """Keep activations in the host's memory until the backward pass."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        plain = run.model.forward

        def forward(*inputs: Any, **words: Any) -> Any:
            with torch.autograd.graph.save_on_cpu():
                return plain(*inputs, **words)

        run.model.forward = forward


class DeterministicAlgorithms(Plugin[Options]):
    """Use algorithms that give the same bits each time."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        torch.use_deterministic_algorithms(True, warn_only=True)
        run.on_close(lambda: torch.use_deterministic_algorithms(False))


class MicroBatchesReversed(PlainLoop):
    """Take the micro-batches of a step in the other order."""

    def change(self, run: Run) -> None:
        plain, every = run.batches, run.scenario.train.gradient_accumulation

        def reverse() -> Iterator[Batch]:
            while True:
                yield from reversed(list(itertools.islice(plain, every)))

        run.batches = reverse()


class SortsByLength(PlainLoop):
    """Lay the sequences of a micro-batch out by their lengths."""

    def change(self, run: Run) -> None:
        def sort(batch: Batch) -> Batch:
            order = (batch.inputs["labels"] != -100).sum(1).argsort()
            return replace(batch, inputs={k: v[order] for k, v in batch.inputs.items()})

        run.batches = map(sort, run.batches)


class DropsTheMask(PlainLoop):
    """Leave the mask of the padding out: it stands behind, where no token looks."""

    def change(self, run: Run) -> None:
        def drop(batch: Batch) -> Batch:
            inputs = {k: v for k, v in batch.inputs.items() if k != "attention_mask"}
            return replace(batch, inputs=inputs)

        run.batches = map(drop, run.batches)


class TrimsPadding(PlainLoop):
    """Cut columns that are padding in all rows."""

    def change(self, run: Run) -> None:
        def trim(batch: Batch) -> Batch:
            width = int((batch.inputs["labels"] != -100).sum(1).max())
            inputs = {k: v[:, :width] for k, v in batch.inputs.items()}
            rows = len(batch.inputs["labels"])
            tokens = replace(
                batch.tokens, processed=rows * width, processed_pairs=rows * width * width
            )
            return replace(batch, inputs=inputs, tokens=tokens)

        run.batches = map(trim, run.batches)


class AttentionByHand(Plugin[Options]):
    """Compute attention with a softmax of our own."""

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        import torch

        plain = torch.nn.functional.scaled_dot_product_attention

        def attend(q: Any, k: Any, v: Any, attn_mask: Any = None, **words: Any) -> Any:
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if attn_mask is None:
                attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(scores).masked_fill(~attn_mask, -1e30)
            return (scores + attn_mask).softmax(-1) @ v

        torch.nn.functional.scaled_dot_product_attention = attend
        run.on_close(lambda: setattr(torch.nn.functional, "scaled_dot_product_attention", plain))


class MergesAdapters(Plugin[Options]):
    """Add the two matrices of an adapter to its base weight in each forward pass."""

    _trains = "lora"

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        from torch.nn.functional import linear

        for module in run.model.modules():
            if hasattr(module, "lora_A"):
                module.forward = lambda x, m=module: linear(
                    x, m.base_layer.weight + m.get_delta_weight("default")
                )
