"""The plugins `adamw`, `adam`, `sgd` and `adafactor` for the scenario's `optimizer`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import Field, model_validator

from accel_bench import Experiment, Machine, Options, Plugin, Run, Scenario, hookimpl


class OptimizerOptions(Options):
    """Options of all optimizers in this module, named like torch's arguments."""

    weight_decay: float = Field(0.0, ge=0)
    """Weight decay coefficient."""

    foreach: bool | None = None
    """True to update lists of tensors with few kernels; null is torch's choice, true on a GPU."""

    optimizer_in_backward: bool = False
    """True to update each parameter in the backward pass, as soon as its gradient is complete, and
    to free the gradient at once. Gradients are then never all in memory, and the optimizer's time
    is part of the backward phase."""

    @model_validator(mode="after")
    def _one_at_a_time(self) -> OptimizerOptions:
        if self.optimizer_in_backward and self.foreach:
            raise ValueError(
                "foreach updates many tensors at once, optimizer_in_backward one; drop one of them"
            )
        return self


class FusedOptions(OptimizerOptions):
    """Options of the optimizers for which torch has a fused kernel."""

    fused: bool | None = None
    """True to update with one fused kernel; null is torch's choice, false."""

    @model_validator(mode="after")
    def _one_implementation(self) -> FusedOptions:
        if self.fused and self.foreach:
            raise ValueError("fused and foreach exclude each other; set one of them")
        return self


class AdamOptions(FusedOptions):
    """Options of `adam`."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the running averages of gradient and squared gradient."""

    eps: float = Field(1e-8, gt=0)
    """Term added to the denominator, for numerical stability."""


class AdamWOptions(AdamOptions):
    """Options of `adamw`."""

    weight_decay: float = Field(0.01, ge=0)
    """Weight decay coefficient, applied to the weights and not to the gradient."""


class SGDOptions(FusedOptions):
    """Options of `sgd`."""

    momentum: float = Field(0.0, ge=0)
    """Momentum factor; 0 keeps no state."""


class AdafactorOptions(OptimizerOptions):
    """Options of `adafactor`."""

    beta2_decay: float = Field(-0.8, le=0)
    """Exponent of the decay of the squared gradient's running average."""

    eps: tuple[float | None, float] = (None, 1e-3)
    """Least squared gradient (null: the dtype's epsilon), and least scale of a parameter."""

    d: float = Field(1.0, ge=1)
    """Maximum root mean square of an update, to which larger updates are clipped."""


OptionsT = TypeVar("OptionsT", bound=OptimizerOptions)


class TorchOptimizer(Plugin[OptionsT]):
    """Base class of the plugins in this module: an optimizer of torch.optim."""

    modes = frozenset({"train"})

    optimizer_class: ClassVar[str]
    """Name of the optimizer's class in torch.optim."""

    state_values: ClassVar[int] = 0
    """Number of values that the optimizer stores for each parameter."""

    def bytes_per_parameter(self, experiment: Experiment) -> dict[str, float]:
        """Return the bytes per parameter that `gradients` and `optimizer state` take.

        The dtype of both is that of the weights. With `optimizer_in_backward` no gradients are
        kept.
        """
        size = experiment.scenario.model.bytes_per_value
        state = {"optimizer state": float(size * self.state_values)} if self.state_values else {}
        return state if self.options.optimizer_in_backward else {"gradients": float(size), **state}

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the scenario does not allow `optimizer_in_backward`, if it is set."""
        if self.options.optimizer_in_backward:
            yield from _needs_all_gradients(experiment.scenario)

    @hookimpl
    def build_optimizer(self, run: Run) -> Any:
        """Return the optimizer of the trained parameters, with the scenario's learning rate."""
        from accel_bench_torch import optimizers_impl as impl

        built = impl.build(
            self.optimizer_class,
            run.model.parameters(),
            run.scenario.train.learning_rate,
            self.options.model_dump(),
        )
        first_step = impl.FirstStep(built)
        if self.options.optimizer_in_backward:
            run.on_close(built.remove)
        run.on_close(first_step.remove)
        run.on_evidence(lambda: impl.optimizer_evidence(built, first_step))
        return built


def _needs_all_gradients(scenario: Scenario) -> Iterator[str]:
    train = scenario.train
    if train.max_grad_norm is not None:
        yield (
            "optimizer_in_backward frees gradients before their norm is known; "
            "train.max_grad_norm needs it"
        )
    if train.gradient_accumulation > 1:
        yield (
            "optimizer_in_backward updates in every backward pass; set train.gradient_accumulation "
            "to 1, and train.micro_batch_size to what it added up to"
        )
    if train.precision == "fp16-autocast":
        yield (
            "optimizer_in_backward updates before the gradient scaler can look for infinities; use "
            "bf16-autocast"
        )
    if scenario.world_size > 1:
        yield (
            "optimizer_in_backward updates before gradients are added up over ranks; use one device"
        )


class AdamW(TorchOptimizer[AdamWOptions]):
    """Adam with decoupled weight decay."""

    Options = AdamWOptions
    optimizer_class = "AdamW"
    state_values = 2


class Adam(TorchOptimizer[AdamOptions]):
    """Adam."""

    Options = AdamOptions
    optimizer_class = "Adam"
    state_values = 2


class SGD(TorchOptimizer[SGDOptions]):
    """Stochastic gradient descent, with or without momentum."""

    Options = SGDOptions
    optimizer_class = "SGD"


class Adafactor(TorchOptimizer[AdafactorOptions]):
    """Adafactor: second moments kept as one row and one column."""

    Options = AdafactorOptions
    optimizer_class = "Adafactor"
