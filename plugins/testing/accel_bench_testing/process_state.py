"""State of a process that a run can change: it is read before and after, compared, and restored."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import operator
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from accel_bench_testing.traces import is_library

WATCHED = (
    "torch.autograd",
    "torch.cuda",
    "torch.nn",
    "torch.optim",
    "torch.utils.checkpoint",
    "transformers",
    "peft",
)
"""Modules, with their submodules, whose functions and classes plugins may patch; of `torch` itself
only direct members."""

SEEN_THROUGH = (
    "the environment, the folder, signal handlers, the garbage collector, torch's global settings "
    "and backend flags, its hooks of all modules and optimizers, the functions of the standard "
    f"library, torch, {', '.join(WATCHED)}, and the threads, processes and files of Python code"
)
"""Description of the process state that is compared before and after a run."""

MEASURING = ("time.", "torch.cuda.")
"""Prefixes of the modules that measure or synchronize, such as clocks and events. None of their
functions may be replaced during the measured steps."""

FLAGS = (
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cudnn.allow_tf32",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "cudnn.enabled",
    "opt_einsum.enabled",
)
"""Attributes of `torch.backends` that change results or speed."""

SETTERS = {
    "torch.set_num_threads": "get_num_threads",
    "torch.set_default_dtype": "get_default_dtype",
    "torch.set_grad_enabled": "is_grad_enabled",
    "torch.set_float32_matmul_precision": "get_float32_matmul_precision",
    "torch.use_deterministic_algorithms": "are_deterministic_algorithms_enabled",
    "torch.autograd.set_detect_anomaly": "is_anomaly_enabled",
    "torch.backends.cuda.enable_flash_sdp": "backends.cuda.flash_sdp_enabled",
    "torch.backends.cuda.enable_math_sdp": "backends.cuda.math_sdp_enabled",
    "torch.backends.cuda.enable_mem_efficient_sdp": "backends.cuda.mem_efficient_sdp_enabled",
}
"""Getters of torch's settings, by setter."""

GLOBAL_HOOKS = {
    "torch.nn.modules.module": (
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
        "_global_backward_hooks",
        "_global_backward_pre_hooks",
    ),
    "torch.optim.optimizer": ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"),
}
"""Names of torch's registries of global module and optimizer hooks, by Python module."""

COMPILED = ("__compiled_fn_", "__resume_at_")
"""Prefixes of names that torch's compiler adds to the module of a compiled function. They disappear
with that function's code, at any time."""

METHODS = (classmethod, staticmethod, property)
"""Types of class members that hold methods but cannot be called themselves."""


@dataclass(frozen=True)
class ProcessState:
    """State of a process that a run can change, and whose changes outlive the run."""

    settings: Mapping[str, Any]
    """Environment variables, settings of torch and of the process, by readable name."""

    functions: Mapping[tuple[str, str], Any]
    """Callables by module or class and attribute; holding them keeps their identities unique."""


def read_process_state() -> ProcessState:
    """Return the current state of the process. Only torch is imported for it."""
    return ProcessState(dict(_settings()), _functions())


def changes(before: ProcessState, after: ProcessState, matmul_precision: str) -> list[str]:
    """Return a sentence for each difference between two states of a process.

    `matmul_precision` is the scenario's precision of float32 products, which core sets in every
    run.
    """
    changed = []
    for name in sorted({*before.settings, *after.settings}):
        was, now = before.settings.get(name), after.settings.get(name)
        set_by_core = name.endswith("matmul_precision") and now == matmul_precision
        if was != now and not set_by_core and not _is_cache_of_torch(name, was, now):
            changed.append(f"{name} is {_shown(now)}, and was {_shown(was)} before")
    left = _changed_functions(before.functions, after.functions)
    return [*changed, *(f"{text} and not put back" for text in left)]


def replaced_measuring(before: ProcessState) -> list[str]:
    """Return a sentence for each measuring function, such as a clock, replaced since `before`."""
    was = {key: value for key, value in before.functions.items() if _measures(key[0])}
    return [*_changed_functions(was, _functions_of(_measures))]


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Restore environment variables, working folder, signal handlers and torch's settings after the
    block."""
    environment, folder = dict(os.environ), Path.cwd()
    hooks = [(registry, dict(registry)) for registry in _global_hooks().values()]
    settable = _settable()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        now = _settable()
        for name, (put_back, value) in settable.items():
            if now[name][1] != value:
                put_back(value)
        for registry, registered in hooks:
            registry.clear()
            registry.update(registered)
        with contextlib.suppress(ValueError):  # not the main thread
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _settable() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """Return the setter function and current value of each setting, by the setter's name."""
    import torch

    settable: dict[str, tuple[Callable[[Any], Any], Any]] = {
        setter: (
            operator.attrgetter(setter.removeprefix("torch."))(torch),
            operator.attrgetter(getter)(torch)(),
        )
        for setter, getter in SETTERS.items()
    }
    settable["gc.enable"] = (lambda on: gc.enable() if on else gc.disable(), gc.isenabled())
    return settable | {f"torch.backends.{flag}": _flag(torch.backends, flag) for flag in FLAGS}


def _flag(backends: Any, path: str) -> tuple[Callable[[Any], Any], Any]:
    parents, _, name = path.rpartition(".")
    owner = operator.attrgetter(parents)(backends)
    try:
        value = getattr(owner, name, None)
    except RuntimeError:  # Of two ways to set TF32, the newer one was taken: this one is mute.
        value = None
    return functools.partial(setattr, owner, name), value


def _settings() -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each setting of torch and of the process."""
    import torch

    for name, value in os.environ.items():
        yield f"the environment variable {name}", repr(value)
    for name, (_, value) in _settable().items():
        yield name, value
    yield "torch.set_default_device", str(torch.get_default_device())
    yield "torch.is_autocast_enabled", torch.is_autocast_enabled("cpu")
    yield "os.chdir", os.getcwd()
    yield "sys.excepthook", sys.excepthook
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        yield f"the handler of {number.name}", signal.getsignal(number)
    for kind, registry in _global_hooks().items():
        for name in map(_name_of, registry.values()):
            # A run that fails early is left by the worker as it is: its process ends.
            if not name.startswith("accel_bench.worker."):
                yield f"the hook {name} in torch's {kind}", "set"


def _global_hooks() -> dict[str, dict[int, Any]]:
    return {
        kind: getattr(importlib.import_module(module), kind, {})
        for module, kinds in GLOBAL_HOOKS.items()
        for kind in kinds
    }


def _functions() -> dict[tuple[str, str], Any]:
    prefixes = tuple(f"{module}." for module in WATCHED)
    return _functions_of(
        lambda name: name == "torch" or f"{name}.".startswith(prefixes) or _is_standard(name)
    )


def _functions_of(watched: Callable[[str], bool]) -> dict[tuple[str, str], Any]:
    functions: dict[tuple[str, str], Any] = {}
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and watched(name):
            _add_module(functions, name, module, seen)
    return functions


def _measures(name: str) -> bool:
    return f"{name}.".startswith(MEASURING)


def _is_standard(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def _add_module(
    found: dict[tuple[str, str], Any], name: str, module: ModuleType, seen: set[int]
) -> None:
    """Add the callables of one module and of its classes to `found`, by module or class and
    attribute.

    `name` is the module's name, and `seen` has the ids of classes that were added before.
    """
    for key, value in list(vars(module).items()):
        if not callable(value) or key.startswith(COMPILED):
            continue
        found[name, key] = value
        if isinstance(value, type) and value.__module__ == name and id(value) not in seen:
            seen.add(id(value))
            owner = f"{name}.{key}"
            for attribute, inner in list(vars(value).items()):
                if callable(inner) or isinstance(inner, METHODS):
                    found[owner, attribute] = inner


def _is_cache_of_torch(name: str, was: Any, now: Any) -> bool:
    """Return whether a changed setting is torch's own cache folder, which torch sets at the first
    compilation.

    `name` is the setting's, and `was` and `now` are its values.
    """
    if was is not None or not name.endswith(" TORCHINDUCTOR_CACHE_DIR"):
        return False
    return Path(now).name.startswith("torchinductor_")


def _changed_functions(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Iterator[str]:
    """Yield sentences on functions that were replaced or removed, except replacements by libraries.

    Both mappings hold functions by module or class and attribute.
    """
    for (owner, name), was in before.items():
        now = after.get((owner, name))
        if now is was or _wraps_itself(owner, now):
            continue
        by = f"by {_name_of(now)} of {_written_in(now)}"
        yield f"{owner}.{name} {'was removed' if now is None else f'was replaced {by}'}"


def _shown(value: Any) -> str:
    return "not set" if value is None else _name_of(value) if callable(value) else str(value)


def _wraps_itself(owner: str, now: Any) -> bool:
    """Return whether a library has replaced its own function, as torch does at first use.

    `owner` is the module or class of the function, and `now` the replacement. A wrapper of
    `torch.compile` counts as the plugin's, except on optimizers, which torch itself wraps to
    exclude them from compilation.
    """
    module = _written_in(now)
    if _is_standard(owner) and is_library(module):
        return True
    both = owner.partition(".")[0] == module.partition(".")[0] == "torch"
    return both and (owner.startswith("torch.optim") or module != "torch._dynamo.eval_frame")


def _written_in(value: Any) -> str:
    """Return the name of the module whose source contains a function, method or property."""
    inner = _plain(value)
    module = getattr(inner, "__globals__", {}).get("__name__") or getattr(inner, "__module__", "")
    return str(module)


def _plain(value: Any) -> Any:
    return getattr(value, "fget", None) or getattr(value, "__func__", None) or value


def _name_of(value: Any) -> str:
    inner = _plain(value)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', None) or '?'}.{name}"
