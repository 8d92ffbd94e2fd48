"""Base classes for authors of plugins: `Plugin`, with its constraints, and `Options`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar, get_args

import pluggy

from accel_bench.documents.base import Described, JsonValue
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario

PROJECT = "accel_bench"
"""Name of the pluggy project and of the entry-point group of plugins."""

CONTRACT = ">=0.1,<0.2"
"""Versions of accel-bench that share this contract: a plugin built for another is refused."""

CONTRACT_VERSION = "1.9"
"""Version of the contract: hooks, declarations and groups of entry points.

The second number grows when something is added, the first when something is taken away or changed.
"""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Decorator that marks a method of a plugin as the implementation of the hook with its name."""


class Options(Described):
    """Base of a plugin's options: a strict, frozen pydantic model with a docstring under each
    field."""


OptionsT = TypeVar("OptionsT", bound=Options)


class Plugin(Generic[OptionsT]):
    """Base class of all plugins.

    A worker makes one instance for each time that its run names the plugin. The parent, which plans
    and starts runs, has one instance for all runs of a stack with the same options, and may call it
    from several threads: hooks there must not store the state of a run on the instance.

    The module that holds the class imports nothing heavy: torch and similar packages are imported
    inside hook bodies. Class attributes declare what the plugin needs; core checks them before
    anything starts, and reports each unmet need.
    """

    Options: ClassVar[type[Options]] = Options
    """Model of the plugin's options; `Plugin[MyOptions]` is enough to set it."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Requirements (PEP 508) beyond the distribution's own, checked by installed metadata."""

    contract: ClassVar[str | None] = None
    """Versions of the contract that the plugin needs (PEP 440), such as `>=1.1,<2`; None: any."""

    restricted_model_archs: ClassVar[frozenset[str] | None] = None
    """Model architectures that the plugin supports, such as `LlamaForCausalLM`; None means any."""

    devices: ClassVar[frozenset[str] | None] = None
    """Device types that the plugin supports, such as `cuda`; None means any."""

    dtypes: ClassVar[frozenset[str] | None] = None
    """Values of `model.dtype` that the plugin supports; None means any."""

    tasks: ClassVar[frozenset[str] | None] = None
    """Tasks that the plugin supports; None means any."""

    modes: ClassVar[frozenset[str] | None] = None
    """Modes (`train`, `inference`) that the plugin supports; None means any."""

    minimum_compute_capability: ClassVar[tuple[int, int] | None] = None
    """Lowest CUDA compute capability that the plugin supports."""

    needs_adapter: ClassVar[bool] = False
    """True if the plugin needs an adapter; a plan may then add one to the work of all stacks."""

    single_node: ClassVar[bool] = False
    """True if the plugin is a launcher that starts processes on one machine only."""

    checks_nodes: ClassVar[bool] = False
    """True if the plugin is a launcher that checks the devices and memory of its nodes itself; the
    machine on which the command runs is then not checked."""

    conflicts: ClassVar[frozenset[str]] = frozenset()
    """Plugins that cannot be in the same stack as this plugin."""

    after: ClassVar[tuple[str, ...]] = ()
    """Plugins that must stand before this plugin in a stack that holds both."""

    before: ClassVar[tuple[str, ...]] = ()
    """Plugins that must stand after this plugin in a stack that holds both."""

    loss_tolerance: ClassVar[float | None] = None
    """Relative distance from the baseline's loss curve that this plugin allows by design; None
    means exactly equal work. `allowed_loss_difference` may let it depend on the options; the task's
    `loss_sensitivity` multiplies it."""

    update_tolerance: ClassVar[float | None] = None
    """Relative distance of the weights' change from the baseline's that is by design; 0.1 is 10 %.
    None means the distance of equal work in another order. `allowed_update_difference` may let it
    depend on the options; the task's `update_sensitivity` multiplies it."""

    other_optimizer: ClassVar[bool] = False
    """True if this plugin's optimizer differs by design from the baseline's in its hyperparameters
    (`betas`, `weight_decay`) or in the dtypes of its state. Without this declaration such a stack
    counts as another training."""

    output_tolerance: ClassVar[float | None] = None
    """Share of generated tokens that may differ from the baseline's by design, each counted after
    equal preceding tokens only; 0.05 is 5 %. None means the share of equal work in this dtype.
    `allowed_output_difference` may let it depend on the options."""

    uses_torch: ClassVar[bool] = True
    """True if this plugin's engine takes its steps with torch; the steps of other engines cannot be
    profiled."""

    makes_working_copies: ClassVar[bool] = False
    """True if the plugin computes with copies of the weights, of dtype `train.work_dtype`."""

    deterministic: ClassVar[bool] = False
    """True if equal seeds give equal losses, bit for bit, on the same machine; the kit in
    `accel_bench.testing` proves it."""

    strategy: ClassVar[str | None] = None
    """Class by which `parallelize_model`, or the engine in its place, joins the ranks, such as
    `DistributedDataParallel` or `FSDPModule`; a run with another class is invalid."""

    def __init_subclass__(cls, **settings: object) -> None:
        """Set the class's `Options` from `Plugin[MyOptions]` if the class does not define it.

        A class with a mistake is created all the same, so that the module's other plugins work;
        `accel_bench.plugins.validation` reports the mistake when this plugin is used.
        """
        super().__init_subclass__(**settings)
        if "Options" in vars(cls):
            return
        for base in getattr(cls, "__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Options):
                    cls.Options = argument

    def __init__(self, options: OptionsT, name: str = "") -> None:
        self.options = options
        self.name = name

    def claims(self) -> frozenset[str] | None:
        """Return the names of the one-answer hooks that this instance answers, by its options.

        None means all that it implements, or for a slot's plugin all hooks of that slot. A slot's
        plugin that names a hook of another slot answers it in place of that slot's plugin.
        """
        return None

    def expected_strategy(self, scenario: Scenario) -> str | None:
        """Return the name of the class that joins the ranks, by default `strategy`, or None."""
        return self.strategy

    def data_parallel(self, scenario: Scenario) -> int:
        """Return the number of groups of ranks that each take batches of their own.

        Called in the parent on the plugin that parallelizes; the rest of `scenario` is resolved. If
        there are fewer groups than ranks, the ranks of a group have consecutive numbers. They get
        the same batches and compute them together, and each returns the whole loss of these
        batches.
        """
        return scenario.world_size

    def fraction_per_device(self, scenario: Scenario) -> float | Mapping[str, float] | None:
        """Return the fraction of weights, gradients and optimizer state that one device keeps.

        Called in the parent on the plugin that parallelizes. A mapping gives a fraction for each
        name of `bytes_per_parameter`. None means unknown; 1 is the fraction of
        `DistributedDataParallel`.
        """
        return None

    def bytes_per_parameter(self, experiment: Experiment) -> Mapping[str, float]:
        """Return the least bytes for each parameter, by purpose (weights, gradients, ...).

        The plugin that loads `model.id` returns the bytes of each weight. The plugin that builds
        the optimizer returns the bytes of gradient and state of each trained parameter. Called in
        the parent, which refuses work that cannot fit; do not import torch. An empty mapping means
        unknown.
        """
        return {}

    def allowed_loss_difference(self) -> float | None:
        """Return the `loss_tolerance` of this instance, which may depend on its options.

        Called in the parent; do not import torch. If only this tolerance allows a loss difference,
        the verdict is `within what NAME declares`, not `equivalent`. Above 0.02 a difference never
        counts as the same training. Other changes, such as of the seed, are never excused.
        """
        return self.loss_tolerance

    def allowed_update_difference(self) -> float | None:
        """Return the `update_tolerance` of this instance, which may depend on its options.

        Called like `allowed_loss_difference`. A distance above 0.3 never shows equal training.
        """
        return self.update_tolerance

    def allowed_output_difference(self) -> float | None:
        """Return the `output_tolerance` of this instance, which may depend on its options.

        Called like `allowed_loss_difference`. A token share above 0.2 never shows equal answers.
        """
        return self.output_tolerance

    def fingerprint(self, experiment: Experiment) -> JsonValue:
        """Return further JSON that determines the experiment's id, such as a file's digest.

        Called in the parent; do not import torch. None means no further input.
        """
        return None
