"""Cross-entropy with a gradient of its own, in one function."""

import reference
import torch


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels):
        chances = logits.softmax(-1)
        picked = chances.gather(1, labels[:, None])
        ctx.save_for_backward(chances, labels)
        return -picked.log().mean()

    @staticmethod
    def backward(ctx, gradient):
        chances, labels = ctx.saved_tensors
        chances[torch.arange(len(labels)), labels] -= 1
        return chances * (gradient / len(labels)), None


def step(model, optimizer, batch):
    logits = model(batch["words"]).flatten(0, 1)
    return reference.update(optimizer, CrossEntropy.apply(logits, batch["labels"].flatten()))
