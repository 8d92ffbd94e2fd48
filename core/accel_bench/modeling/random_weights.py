"""Creation of weights by block: a model to quantize never exists as a whole in full precision."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import transformers
from accelerate import init_empty_weights
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from accel_bench.errors import ScenarioError
from accel_bench.modeling.blocks import block_lists, repeated_blocks
from accel_bench.modeling.contract import has_attention
from accel_bench.modeling.random_state import keep_random_state
from accel_bench.modeling.tensors import is_simulated

Replace = Callable[[str, nn.Module], nn.Module | None]
"""Function that returns the replacement of a module, or None, given its name and the module."""

MODEL_CLASS = "AutoModelForCausalLM"
"""Class of transformers that creates a model if no task names one."""

SAMPLED_PARAMETERS = 4
"""Number of parameters from each end of a model that its fingerprint covers."""

SAMPLED_ELEMENTS = 1024
"""Number of elements of each parameter that a fingerprint covers."""


class _OwnValuesError(Exception):
    """Error if a module's constructor fills a parameter: the model must be created as a whole."""


class Fingerprint:
    """Digest of the beginnings of a model's first and last few parameters.

    The constructor chooses the parameters, and `look` reads their weights: a loader that replaces
    modules passes each module to `look` before it is replaced.
    """

    def __init__(self, model: nn.Module) -> None:
        named = list(model.named_parameters())
        ends = named[:SAMPLED_PARAMETERS] + named[SAMPLED_PARAMETERS:][-SAMPLED_PARAMETERS:]
        self._seen: dict[str, bytes | None] = {name: None for name, _ in ends}

    def look(self, name: str, module: nn.Module) -> None:
        """Read the weights of all chosen parameters that are in the module called `name`."""
        prefix = f"{name}." if name else ""
        if is_simulated():
            return
        for key, parameter in module.named_parameters(remove_duplicate=False):
            if self._seen.get(prefix + key, b"") is None and not parameter.is_meta:
                start = parameter.detach().reshape(-1)[:SAMPLED_ELEMENTS]
                head = f"{prefix}{key} {tuple(parameter.shape)} {parameter.dtype}\n".encode()
                content = start.to("cpu", torch.float32).numpy().tobytes()
                self._seen[prefix + key] = head + content

    def digest(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of the weights read."""
        return hashlib.sha256(b"".join(filter(None, self._seen.values()))).hexdigest()[:16]


def random_model(  # noqa: PLR0913 - what the weights depend on, and what becomes of them
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: str,
    seed: int,
    *,
    attention: str = "sdpa",
    model_class: str = MODEL_CLASS,
    replace: Replace | None = None,
) -> tuple[Any, str]:
    """Return a configuration's model with random weights on the device, and its fingerprint.

    A module's weights depend only on its name, the configuration, dtype, device type and seed. So
    all stacks get the same weights, whatever `replace` does with them. The global random state is
    unchanged. On the device `meta`, and in a simulation, no weights are filled.
    """
    place = torch.device(device)
    # A configuration that brings code of its own was refused, or trusted, when it was built; that
    # code need not initialize one module at a time.
    foreign = not type(config).__module__.startswith("transformers.")
    auto_class = getattr(transformers, model_class)
    make = functools.partial(
        auto_class.from_config,
        config,
        dtype=dtype,
        attn_implementation=attention if has_attention(config) else None,
    )
    with keep_random_state(place):
        if not foreign and place.type != "meta" and not is_simulated():
            with no_init_weights(), init_empty_weights(include_buffers=False), place:
                model = make()
            model.tie_weights()
            with contextlib.suppress(_OwnValuesError):
                fill = _Filling(model, place, seed, again=replace is None)
                if replace is not None:
                    fill.initialize_outside(repeated_blocks(model))
                return _in_blocks(model, fill, replace)
        torch.manual_seed(seed)
        with place:
            model = make(trust_remote_code=foreign)
        return place_model(model, place, replace)


def place_model(model: Any, place: torch.device, replace: Replace | None = None) -> tuple[Any, str]:
    """Move a model block by block to the device `place`; return it and its weights' fingerprint."""
    moves = not is_simulated()  # Fake weights are made where they stay.
    return _in_blocks(model, lambda name, module: moves and module.to(place), replace)


def _in_blocks(
    model: Any, make: Callable[[str, nn.Module], object], replace: Replace | None
) -> tuple[Any, str]:
    """Call `make(path, module)` on each block, then the model; return model and fingerprint."""
    fingerprint = Fingerprint(model)
    for path, blocks in block_lists(model).items():
        for number, block in enumerate(blocks):
            name = f"{path}.{number}"
            make(name, block)
            fingerprint.look(name, block)
            if replace is not None:
                _replace_inside(name, block, replace)
    make("", model)
    fingerprint.look("", model)
    return model, fingerprint.digest()


def _replace_inside(block_name: str, block: nn.Module, replace: Replace) -> None:
    owners = [
        (name, module)
        for name, module in block.named_modules()
        if name and next(module.parameters(recurse=False), None) is not None
    ]
    for name, module in owners:
        new = replace(f"{block_name}.{name}", module)
        if new is not None and new is not module:
            block.set_submodule(name, new)


class _Filling:
    """Function that fills modules with random weights, each module from a seed of its own."""

    def __init__(
        self, model: PreTrainedModel, place: torch.device, seed: int, *, again: bool
    ) -> None:
        """Store model, device and seed; `again` is true if the model may be created once more."""
        self._model = model
        self._again = again
        self._place = place
        self._seed = seed
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
        ids = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
        self._tied = {object_id for object_id, count in ids.items() if count > 1}
        self._filled: set[int] = set()
        self._has_blocks = False

    @torch.no_grad()
    def initialize_outside(self, blocks: Sequence[nn.Module]) -> None:
        """Initialize the model's modules outside of `blocks`, before any module is replaced.

        Raises _OwnValuesError for a parameter that its class does not initialize.
        """
        inside = {id(module) for block in blocks for module in block.modules()}
        self._filled |= inside
        self._fill("", self._model, self._model)
        if any(weight.isnan().any() for weight in self._model.parameters() if not weight.is_meta):
            raise _OwnValuesError
        self._filled = {id(module) for module in self._model.modules()} - inside

    @torch.no_grad()
    def __call__(self, name: str, module: nn.Module) -> None:
        """Fill a module and its children, except modules that are already filled.

        Raises an error for a parameter that its class does not initialize: _OwnValuesError if the
        model may be created anew, ScenarioError if some of its modules have been replaced.
        """
        unfilled = [key for key, parameter in module.named_parameters() if parameter.is_meta]
        self._fill(name, module, self._owner(name))
        for key in unfilled:
            if module.get_parameter(key).isnan().any():
                if self._again or not self._has_blocks:
                    raise _OwnValuesError
                raise ScenarioError(
                    f"{type(self._model).__name__} leaves {f'{name}.{key}'.lstrip('.')} "
                    "uninitialized; use `weights: pretrained`"
                )
        self._filled.add(id(module))
        self._has_blocks = True

    def _fill(self, name: str, module: nn.Module, owner: PreTrainedModel) -> None:
        """Fill a module's children, then the module, by `_init_weights` of the model `owner`."""
        if id(module) in self._filled:
            return
        owner = module if isinstance(module, PreTrainedModel) else owner
        for child_name, child in module.named_children():
            self._fill(f"{name}.{child_name}".lstrip("."), child, owner)
        own = list(module.named_parameters(recurse=False))
        tied = bool(own) and all(id(parameter) in self._made for _, parameter in own)
        for key, parameter in own:
            if parameter.is_meta:
                module.register_parameter(key, self._real(parameter))
        if not tied:
            seed_generators(seed_of(self._seed, name), {self._place.type})
            owner._init_weights(module)

    def _owner(self, name: str) -> PreTrainedModel:
        """Return the innermost transformers model around a module: the one that initializes it."""
        owner, place = self._model, self._model
        for part in name.split(".") if name else ():
            place = getattr(place, part)
            owner = place if isinstance(place, PreTrainedModel) else owner
        return owner

    def _real(self, parameter: nn.Parameter) -> nn.Parameter:
        """Return a parameter of NaN on the device, to replace a `meta` one and those tied to it."""
        if id(parameter) in self._made:
            return self._made[id(parameter)][1]
        data = torch.full_like(parameter, torch.nan, device=self._place)
        made = nn.Parameter(data, parameter.requires_grad)
        # No other is kept: what a module had before it was replaced has to go at once.
        if id(parameter) in self._tied:
            self._made[id(parameter)] = parameter, made
        return made


def seed_generators(seed: int, device_types: Collection[str]) -> None:
    """Seed the random generators of all devices, or only the CPU's for the device type `cpu` alone.

    The call of `torch.manual_seed` is avoided for the CPU: it formats the call stack for other
    devices not yet started, which takes a millisecond.
    """
    if set(device_types) == {"cpu"}:
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def seed_of(seed: int, name: str) -> int:
    """Return a 63-bit seed that is derived from `seed` and `name`."""
    return random.Random(f"{seed}/{name}").getrandbits(63)
