"""Check that a model keeps the sequences of a row apart."""

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
"""Lengths of the two sequences of the probe: kernels of quantized layers want multiples of 16."""

ALLOWED_DIFFERENCE = {torch.float32: 1e-2}
"""Largest relative distance of the probe's logits, by the dtype of products."""

ALLOWED_IN_HALF = 1e-1
"""The same for 16 bits. A sequence that sees another one is farther away than its own size."""


def prove_isolation(run: Run, attention: Attention) -> float | None:
    """Compare the model's logits of a sequence in a row with those of the sequence alone.

    Returns the relative distance of the logits of a sequence that stands behind another one from
    those of the sequence alone, computed by the model's own attention; None for a model without
    weights yet. Raises InvalidRunError when they are not the same: sequences see one another, or
    positions do not start again.
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
    """Turn dropout off within the block.

    Only modules without weights of their own change mode: kernels of quantized layers may turn for
    good into ones without a gradient in evaluation mode.
    """
    told = [m for m in model.modules() if m.training and not (m._parameters or m._buffers)]
    for module in told:
        module.training = False
    try:
        yield
    finally:
        for module in told:
            module.training = True
