"""Program of a judged step's process: it confines itself, loads the file, and takes requested
steps.

    python -m accel_bench_judge.subject_impl SETTINGS

The judge trusts none of its results, and checks them by its own computation.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import socket
import struct
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accel_bench_judge.confinement import confine

STEP, COUNTED, ERROR = b"s", b"c", b"e"
ANSWER = struct.Struct("=cdd")
"""Binary format of an answer: kind, loss and counted FLOPs of a step."""


def main(settings: dict[str, Any]) -> None:
    """Confine the process, prepare the step, and take steps until the judge closes the channel.

    `settings` are the program's JSON argument, as `Trial` writes it.
    """
    channel = socket.socket(fileno=settings["channel"])
    try:
        confined = confine(settings["folders"])
        channel.send(ANSWER.pack(STEP, *map(float, confined)))  # none of the file's code has run
        take_step = _prepared(settings)
        channel.send(ANSWER.pack(STEP, 0.0, 0.0))
        while request := channel.recv(1):
            channel.send(ANSWER.pack(request, *take_step(request == COUNTED)))
    except BaseException as error:  # SystemExit, for one, when the file is loaded
        with contextlib.suppress(OSError):
            channel.send(ERROR + _described(error, settings["file"]).encode(errors="replace")[:500])
        raise


def _described(error: BaseException, file: str) -> str:
    """Return the type of an error, the last line of the file that led to it, and its message."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    where = f" in line {lines[-1]} of {Path(file).name}" if lines else ""
    return f"{type(error).__name__}{where}: {error}"


def _prepared(settings: dict[str, Any]) -> Any:
    """Return a function that takes one step, and returns the step's loss and FLOPs.

    The function's argument is whether to count FLOPs; uncounted FLOPs are 0.
    """
    from accel_bench_judge.shared_impl import attach, copy_to, loss_value, state_of
    from accel_bench_judge.step_files import CANDIDATE, REFERENCE, load_steps

    memory = mmap.mmap(settings["memory"], settings["bytes"])
    records, inputs = attach(memory, settings["state"]), attach(memory, settings["batch"])
    reference = load_steps(settings["reference"], REFERENCE, shared=True)
    model = reference.make_model()
    state = state_of(model)
    copy_to(records, {name: state[name] for name in records})
    optimizer = reference.make_optimizer(model)
    candidate = load_steps(settings["file"], CANDIDATE)
    prepare, step = getattr(candidate, "prepare", None), candidate.step
    used = prepare(model, optimizer) if prepare else None
    used = (model, optimizer) if used is None else used
    if not isinstance(used, tuple | list):
        raise TypeError(f"`prepare` returned a {type(used).__name__}, not (model, optimizer)")

    def take_step(counted: bool) -> tuple[float, float]:
        batch = {name: tensor.clone() for name, tensor in inputs.items()}
        with counting(counted) as flops:
            loss = loss_value(step(*used, batch))
        copy_to(state_of(model), records)
        return loss, flops()

    return take_step


@contextlib.contextmanager
def counting(counted: bool) -> Iterator[Any]:
    """Yield a function that returns the FLOPs counted so far in the `with` block.

    If `counted` is False, it returns 0.0. While FLOPs are counted, compiled calls run eagerly.
    """
    if not counted:
        yield lambda: 0.0
        return
    import torch
    from torch.utils.flop_counter import (
        FlopCounterMode,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    aten = torch.ops.aten  # torch's counter knows the attention kernels of GPUs alone
    kernels = {
        aten._scaled_dot_product_flash_attention_for_cpu: (
            lambda *shapes, out_shape, **_: sdpa_flop_count(*shapes[:3])
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda *shapes, out_shape, **_: sdpa_backward_flop_count(*shapes[:4])
        ),
    }
    stance = torch.compiler.set_stance("force_eager")
    with stance, FlopCounterMode(display=False, custom_mapping=kernels) as counter:
        yield lambda: float(counter.get_total_flops())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
