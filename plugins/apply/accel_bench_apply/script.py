"""The function `accelerate`, which applies a stack to a model in the process of a script."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_bench.errors import AccelBenchError, ScenarioError
from accel_bench.scenario.find import ScenarioSource

if TYPE_CHECKING:
    from accel_bench_apply.accelerated import AcceleratedModel

_one_at_a_time = threading.RLock()
_open: list[AcceleratedModel] = []
"""The unclosed accelerated model of this process; at most one."""


def accelerate(  # noqa: PLR0913 - what a script says
    model: Any = None,
    stack: str | list[Any] | Mapping[str, Any] | None = None,
    *,
    scenario: ScenarioSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    arguments: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
) -> AcceleratedModel:
    """Return a model accelerated by a stack, as it is in the runs of `accel-bench run`.

    The same plugins load, adapt, accelerate and compile the model, after the same checks. The parts
    of the stack that do not concern the model are listed in `outside` of the result. The script
    must apply them itself, or take them from the result.

        with accel_bench.accelerate(model, "fused-kernels+torch-compile") as accelerated:
            print(*accelerated.outside, sep="\\n")
            train(accelerated.model)

    `model` is a module that is built already; a local directory or hub id with weights; a mapping
    as under `model` in a scenario; or None for the scenario's model. `stack` is the name of a stack
    of the scenario, of a named stack or of a plugin, plugins joined by `+`, a list of plugins, or a
    mapping as in a scenario; None is the baseline. `scenario` is as for `accel_bench.run`, and its
    settings hold as in a run. `overrides` changes dotted keys, such as `{"adapter.use": "lora"}`.
    `arguments` are the TrainingArguments of a Trainer, whose batch sizes, precision and clipping
    the plugins then check. A given model is moved to `device`, or else to where Trainer would move
    it by `arguments`, and converted to `dtype`.

    The training processes are the members of torch.distributed's process group, if there is one.
    The current CUDA device is used.

    Raises ScenarioError or PluginError if the request must be changed, and HookError if a plugin
    fails; the plugins' changes are then undone. Warns of additions that a plugin needs, such as an
    adapter. A second model cannot be accelerated before the first is closed, because plugins change
    functions of the whole process.
    """
    return apply_stack(
        model,
        stack,
        scenario=scenario,
        overrides=overrides,
        arguments=arguments,
        device=device,
        dtype=dtype,
        trust_remote_code=trust_remote_code,
    )


def apply_stack(  # noqa: PLR0913 - what `accelerate` takes, and `in_place`
    model: Any,
    stack: Any,
    *,
    scenario: ScenarioSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    arguments: Any = None,
    device: str | None = None,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    in_place: bool = False,
) -> AcceleratedModel:
    """Return what `accelerate` returns. With `in_place`, raise ScenarioError before the model is
    changed if the stack adds an adapter or wraps the model."""
    from accel_bench_apply.accelerated import AcceleratedModel
    from accel_bench_apply.given import checked_dtype, device_of_trainer
    from accel_bench_apply.request import ask, read_world

    if not isinstance(overrides, Mapping | None):
        raise ScenarioError(
            "overrides is a mapping of dotted keys, such as {'adapter.use': 'lora'}, and no "
            f"{type(overrides).__name__}"
        )
    with _one_at_a_time:
        refuse_second()
        folder = Path(tempfile.mkdtemp(prefix="accel-bench-apply-"))
        try:
            world = read_world()
            changes = dict(overrides or {})
            is_module = hasattr(model, "named_parameters")
            dtype = checked_dtype(dtype)
            if is_module:
                device = device or device_of_trainer(model, arguments)
            else:
                changes |= {"resources.device": device} if device else {}
                changes |= {"model.dtype": dtype} if dtype else {}
            asked = ask(
                model,
                stack,
                scenario=scenario,
                overrides=changes,
                arguments=arguments,
                folder=folder,
                world=world,
                trust_remote_code=trust_remote_code,
                device=device,
                dtype=dtype,
            )
            active = asked.planned.active
            if in_place and (active.answers("add_adapter") or active.answers("parallelize_model")):
                raise makes_another_model(asked.planned.experiment.stack.name)
            given = model if is_module else None
            made = AcceleratedModel(asked, world, folder, given, trust_remote_code, _closing)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        _open.append(made)
        for notice in made.notices:
            warnings.warn(f"stack {made.stack!r}: {notice}", stacklevel=2)
        return made


@contextmanager
def _closing(made: AcceleratedModel) -> Iterator[None]:
    """Hold the lock while a model is closed in the `with` block, and then allow another model."""
    with _one_at_a_time:
        try:
            yield
        finally:
            if made in _open:
                _open.remove(made)


def makes_another_model(stack: str) -> ScenarioError:
    """Return the error for a stack that a Trainer's callback cannot apply, since the Trainer would
    keep the old model."""
    return ScenarioError(
        f"the stack {stack!r} makes another model of it, such as by an adapter: call accelerate "
        "first, give its model to the Trainer, and its trainer_callback()"
    )


def refuse_second() -> None:
    """Raise AccelBenchError if a model of this process is already accelerated."""
    if _open:
        raise AccelBenchError(
            f"the stack {_open[0].stack!r} is active in this process (pid {os.getpid()}), and "
            "plugins change functions of the whole process, which a second stack would change "
            "again; close() it first (a callback's is its `accelerated`), or accelerate the other "
            "model in a process of its own"
        )
