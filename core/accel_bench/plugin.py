"""What a plugin author subclasses: `Plugin`, with its `Options` and its constraints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Generic, TypeVar, get_args

import pluggy

from accel_bench.documents.base import Described, JsonValue
from accel_bench.scenario.experiment import Experiment
from accel_bench.scenario.models import Scenario

PROJECT = "accel_bench"
"""Name of the pluggy project and of the entry-point group."""

CONTRACT = ">=0.1,<0.2"
"""Versions of accel-bench that share this contract: a plugin built for another is refused."""

CONTRACT_VERSION = "1.6"
"""Version of the contract: hooks, declarations and groups of entry points.

The second number grows when something is added, the first when something is taken away or changed.
"""

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a method of a plugin as the implementation of the hook of that name."""


class Options(Described):
    """Base of a plugin's options: a pydantic model, strict and frozen, a docstring under each
    field."""


OptionsT = TypeVar("OptionsT", bound=Options)


class Plugin(Generic[OptionsT]):
    """Base of all plugins.

    One instance serves one use in one run; in the parent, which plans and starts runs, all runs of
    a stack with the same options. The module that holds the class imports nothing heavy: torch and
    friends are imported inside hook bodies. Class attributes declare what is needed; core checks
    them before anything starts and says what is not met.
    """

    Options: ClassVar[type[Options]] = Options
    """The model of the options; `Plugin[MyOptions]` is enough to set it."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Requirements (PEP 508) beyond those of the distribution; checked from metadata."""

    contract: ClassVar[str | None] = None
    """Versions of the contract that it needs (PEP 440), such as `>=1.1,<2`; None means any."""

    restricted_model_archs: ClassVar[frozenset[str] | None] = None
    """Architectures that it works with, such as `LlamaForCausalLM`; None means any."""

    devices: ClassVar[frozenset[str] | None] = None
    """Device types that it works on; None means any."""

    dtypes: ClassVar[frozenset[str] | None] = None
    """Values of `model.dtype` that it works with; None means any."""

    tasks: ClassVar[frozenset[str] | None] = None
    """Tasks that it works with; None means any."""

    modes: ClassVar[frozenset[str] | None] = None
    """Modes that it works in; None means any."""

    minimum_compute_capability: ClassVar[tuple[int, int] | None] = None
    """Oldest CUDA compute capability that it runs on."""

    needs_adapter: ClassVar[bool] = False
    """True if it only works with an adapter; one is added to the work of every stack when asked
    for."""

    single_node: ClassVar[bool] = False
    """True if a launcher starts processes on one machine only."""

    checks_nodes: ClassVar[bool] = False
    """True if a launcher starts all ranks on nodes whose devices and memory it checks itself: those
    of the machine on which the command runs do not count."""

    conflicts: ClassVar[frozenset[str]] = frozenset()
    """Plugins that cannot be in the same stack."""

    after: ClassVar[tuple[str, ...]] = ()
    """Plugins that must stand before it in a stack, when they are there."""

    before: ClassVar[tuple[str, ...]] = ()
    """Plugins that must stand after it in a stack, when they are there."""

    loss_tolerance: ClassVar[float | None] = None
    """Relative distance from the baseline's loss curve that is by design; None means exactly equal
    work. `allowed_loss_difference` may let it depend on the options; the task's `loss_sensitivity`
    multiplies it."""

    update_tolerance: ClassVar[float | None] = None
    """Relative distance of the weights' change from that of the baseline that is by design; 0.1 is
    10 %. None means the distance of equal work in another order. `allowed_update_difference` may
    let it depend on the options; the task's `update_sensitivity` multiplies it."""

    other_optimizer: ClassVar[bool] = False
    """True if its optimizer has other numbers (`betas`, `weight_decay`), or other dtypes of its
    state, than the baseline's by design. Without this declaration such a stack counts as another
    training."""

    output_tolerance: ClassVar[float | None] = None
    """Share of generated tokens that may differ from the baseline's by design, each counted where
    all tokens before it are equal; 0.05 is 5 %. None means that of equal work in this dtype.
    `allowed_output_difference` may let it depend on the options."""

    uses_torch: ClassVar[bool] = True
    """True if an engine takes its steps with torch: steps of others are measured, and cannot be
    profiled."""

    makes_working_copies: ClassVar[bool] = False
    """True if it computes with copies of the weights, in the dtype of `train.work_dtype`."""

    deterministic: ClassVar[bool] = False
    """True if the same seed gives the same losses, bit for bit, on the same machine; the kit in
    `accel_bench.testing` proves it."""

    strategy: ClassVar[str | None] = None
    """Class by which `parallelize_model`, or an engine in its place, joins the ranks, such as
    `DistributedDataParallel` or `FSDPModule`; a run that is joined otherwise is invalid."""

    def __init_subclass__(cls, **settings: object) -> None:
        """Take the options' model from `Plugin[MyOptions]` where no `Options` is written.

        A class with a slip is made all the same: the module's other plugins work, and
        `accel_bench.plugins.validation` names it when this one is used.
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
        """One-answer hooks that this instance answers, by its options.

        None means all it implements, or those of its slot where it fills one. A slot's plugin that
        names a hook of another slot answers that too, in the place of that slot's plugin.
        """
        return None

    def expected_strategy(self, scenario: Scenario) -> str | None:
        """Return the `strategy` of this instance, by its options."""
        return self.strategy

    def data_parallel(self, scenario: Scenario) -> int:
        """Return the number of groups of ranks that each take batches of their own.

        Called in the parent on the plugin that parallelizes, with an otherwise resolved scenario.
        Fewer than ranks: ranks of a group follow one another, get the same batches and compute them
        together, and each returns the whole loss of them.
        """
        return scenario.world_size

    def fraction_per_device(self, scenario: Scenario) -> float | Mapping[str, float] | None:
        """Return the fraction of weights, gradients and optimizer state that a device keeps.

        Called in the parent on the plugin that parallelizes. A mapping gives those of parts by the
        names of `bytes_per_parameter`. None means that it is not known; 1 is what
        `DistributedDataParallel` keeps.
        """
        return None

    def bytes_per_parameter(self, experiment: Experiment) -> Mapping[str, float]:
        """Return the bytes that are kept of each parameter at least, by what they are.

        The plugin that loads the model that `model.id` names returns those of each of its weights;
        the one that builds the optimizer, gradients and state of each that trains. Called in the
        parent, which refuses what cannot fit: light, no torch. Empty means not known.
        """
        return {}

    def allowed_loss_difference(self) -> float | None:
        """Return the `loss_tolerance` of this instance, by its options.

        Called in the parent: light, no torch. A loss that only this allows is `within what NAME
        declares`, never `equivalent`; above 0.02 it is no evidence of the same training. It excuses
        what this plugin changes, and nothing else.
        """
        return self.loss_tolerance

    def allowed_update_difference(self) -> float | None:
        """Return the `update_tolerance` of this instance, by its options.

        As `allowed_loss_difference`; a distance above 0.3 is no evidence.
        """
        return self.update_tolerance

    def allowed_output_difference(self) -> float | None:
        """Return the `output_tolerance` of this instance, by its options.

        As `allowed_loss_difference`; a share above 0.2 is no evidence.
        """
        return self.output_tolerance

    def fingerprint(self, experiment: Experiment) -> JsonValue:
        """Return what else changes the result, such as a file's content: it becomes part of the id.

        Called in the parent: light, no torch. None means nothing.
        """
        return None
