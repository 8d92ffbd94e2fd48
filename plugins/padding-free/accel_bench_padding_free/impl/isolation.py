"""Verification that a model's attention separates the sequences of a row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from accel_bench import Run
from accel_bench.errors import InvalidRunError
from accel_bench_padding_free.batches import Attention, flat_inputs
from accel_bench_padding_free.impl.attention import product_dtype

PROBE_LENGTHS = (16, 32)
"""Lengths of the probe's sequences in tokens; kernels of quantized layers need multiples of 16."""

ALLOWED_DIFFERENCE = {torch.float32: 1e-2}
"""Largest relative distance of the probe's logits, by the dtype of matrix products."""

ALLOWED_IN_HALF = 1e-1
"""Largest relative distance in 16 bits; attending to another sequence gives more than 1."""


def prove_isolation(run: Run, attention: Attention) -> float | None:
    """Return how far a sequence's logits in a row are from its logits when computed alone.

    In the row, another sequence stands before it. The result is a relative distance, or None for a
    model that has no weights yet. Raises InvalidRunError if the distance is too large: then
    sequences attend to one another, or positions do not start again.
    """
    if any(parameter.is_meta for parameter in run.model.parameters()):
        return None
    device, dtype = torch.device(str(run.device)), product_dtype(run)
    generator = np.random.default_rng(0)
    vocabulary = run.model.config.get_text_config().vocab_size
    rows = [generator.integers(vocabulary, size=length) for length in PROBE_LENGTHS]
    inputs = {name: tensor.to(device) for name, tensor in flat_inputs(rows, attention).items()}
    del inputs["labels"]
    with torch.no_grad(), _still(run.model), run.autocast():
        together = run.model(**inputs).logits[0, PROBE_LENGTHS[0] :].float()
        alone = run.model(input_ids=inputs["input_ids"][:, PROBE_LENGTHS[0] :]).logits[0].float()
    distance = float((together - alone).norm() / alone.norm())
    allowed = ALLOWED_DIFFERENCE.get(dtype, ALLOWED_IN_HALF)
    if not distance <= allowed:
        raise InvalidRunError(
            [
                "padding-free: the model's answer to a sequence depends on the one before it in "
                f"the row: its logits differ by {distance:.2g}, {allowed:g} allowed; its attention "
                "or its positions do not go by position_ids, so that padding cannot be left out"
            ]
        )
    return distance


@contextlib.contextmanager
def _still(model: nn.Module) -> Iterator[None]:
    """Disable a model's dropout within the block.

    Only modules without weights are set to evaluation mode. A quantized layer in evaluation mode
    may switch, for good, to a kernel that computes no gradients.
    """
    told = [m for m in model.modules() if m.training and not (m._parameters or m._buffers)]
    for module in told:
        module.training = False
    try:
        yield
    finally:
        for module in told:
            module.training = True
