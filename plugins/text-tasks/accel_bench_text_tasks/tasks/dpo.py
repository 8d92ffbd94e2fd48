"""The task `dpo`: direct preference optimization (Rafailov et al., 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import Field

from accel_bench import (
    Batch,
    Experiment,
    Held,
    Loss,
    ModelUse,
    Options,
    Run,
    Scenario,
    Task,
    held_tokens,
    hookimpl,
    model_problems,
)
from accel_bench.errors import ScenarioError
from accel_bench.modeling.model_files import digest_of_model
from accel_bench.modeling.tensor_parallel_plan import tensor_parallel_problems


class DPOOptions(Options):
    """Options of `dpo`: parameters of the loss, and the reference model."""

    beta: float = Field(0.1, gt=0, allow_inf_nan=False)
    """Strength of the penalty for moving away from the reference (DPO's beta)."""

    nll_scale: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Weight of the chosen answers' negative log-likelihood in the loss, averaged over the tokens
    of the step."""

    length_normalization: bool = False
    """Divide the log-probability of each answer by its number of tokens."""

    reference_model: str | None = Field(None, min_length=1)
    """Reference model, in the form of `model.id`, with the same `model.weights`; null: the policy
    before its first step, or under an adapter the base model."""

    reference_tensor_parallel_size: int = Field(1, ge=1)
    """Number of devices that share one reference model by transformers' tensor-parallel plan,
    independently of the policy; 1: each device holds a whole one."""


class DPO(Task[DPOOptions]):
    """Trains a policy to prefer chosen answers to rejected ones; a pair is a sample."""

    Options = DPOOptions
    families = frozenset({"text-generation"})
    pairs = "preferred"
    loss_inputs = frozenset({"labels", "chosen_tokens"})

    # It compares sums over whole answers: over 8 steps of `dpo-cpu` bases of 4 bits moved the loss
    # by 3 to 7 %, where that of `causal-lm` moved by 0.2 %, for which they declare 2 %.
    loss_sensitivity = 4.0

    _copies = False
    """True if the reference model is a copy of the policy."""

    _reference: Any = None
    """Copy of the policy, made before adapters are added; None if there is no copy."""

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return the SHA-256 of the reference model's local directory, or None if no such directory
        is named."""
        use = self._reference_use(experiment.scenario)
        return None if use is None else digest_of_model(use)

    def adjust_model(self, model: Any) -> None:
        """Disable dropout, as TRL does, and copy the policy if the reference model is a copy of it.

        This happens before adapters, accelerations and compilation, which the copy must not have.
        """
        from accel_bench_text_tasks.tasks import dpo_impl

        dpo_impl.turn_dropout_off(model)
        if self._copies:
            self._reference = dpo_impl.copy_of(model)

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterable[str]:
        """Yield reasons why the options' number of devices cannot share the reference model.

        Raises ScenarioError for a reference model that cannot be loaded.
        """
        scenario = experiment.scenario
        if use := self._reference_use(scenario):
            for problem in model_problems(use):
                raise ScenarioError(f"task.reference_model: {problem}")
        if self.options.reference_tensor_parallel_size > 1:
            yield from self._division_problems(scenario)

    def held(self, batch: Batch) -> Held | None:
        """Return bounds of the number of tokens in a batch of pairs; None if it has no `input_ids`.

        The first label of a sequence does not count, since the loss shifts labels.
        """
        return held_tokens(batch, shifts=True)

    @hookimpl
    def prepare_process(self, run: Run) -> None:
        """Import the loss's modules, so that their memory counts as imports."""
        from accel_bench_text_tasks.tasks import dpo_impl  # noqa: F401

        self._copies = self._copied(run.scenario)

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the DPO loss with its reference model."""
        from accel_bench_text_tasks.tasks.dpo_impl import PreferenceLoss

        loss = PreferenceLoss(run, self.options, self._reference)
        run.on_evidence(loss.evidence)
        return loss

    def _division_problems(self, scenario: Scenario) -> Iterator[str]:
        """Yield reasons why `reference_tensor_parallel_size` devices cannot share the reference."""
        size, option = self.options.reference_tensor_parallel_size, "reference_tensor_parallel_size"
        use = self._reference_use(scenario)
        if use is None and not self._copied(scenario):
            yield (
                f"{option} {size}: the reference is the base under the adapter, which is divided "
                "as the policy is; leave it out, or name a reference_model"
            )
            return
        if scenario.world_size % size:
            yield f"{option} {size} does not divide the {scenario.world_size} devices"
        sharing = scenario.world_size // scenario.data_parallel
        if sharing % size and size % sharing:
            yield (
                f"{option} {size}: {sharing} devices compute one batch of the policy together, and "
                "neither number divides the other"
            )
        yield from tensor_parallel_problems(use or scenario.model, size, option)

    def _copied(self, scenario: Scenario) -> bool:
        return self.options.reference_model is None and scenario.adapter.use == "none"

    def _reference_use(self, scenario: Scenario) -> ModelUse | None:
        """Return the reference model as a scenario's model section, or None if none is named."""
        name = self.options.reference_model
        if name is None:
            return None
        return scenario.model.model_copy(update={"id": name, "overrides": {}, "revision": None})
