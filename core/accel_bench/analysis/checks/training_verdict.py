"""Verdicts on a stack's training relative to the baseline's, and what they mean for the speed."""

from __future__ import annotations

from typing import NamedTuple, get_args

from accel_bench.analysis.checks.convergence import LossComparison
from accel_bench.analysis.checks.outputs import OutputComparison
from accel_bench.analysis.statistics.verdict import ALIKE, Comparison, Training
from accel_bench.analysis.wording import training_word

NO_TRAINING = "nothing is trained: one operation is called on its own"
"""Reason for no verdict on a benchmark of operations, which counts calls instead of tokens."""

ONLY_GENERATED = "nothing is trained: the model answers requests"
"""Reason for no verdict on losses and updates in mode inference."""


class Judged(NamedTuple):
    """Verdict on the loss, update or output of a stack."""

    verdict: Training
    excused: bool
    """True if only a plugin's declaration excuses a difference above the usual tolerance."""

    declared_by: tuple[str, ...]
    reason: str


class TrainingComparison(OutputComparison, LossComparison):
    """Comparison of a stack's loss and update with the baseline's, or of B's with A's; in mode
    inference, of its output."""

    training_reasons: tuple[str, ...] = ()
    """Differences between what the stack and the baseline train; empty without any."""

    update_verdict: Training = "not tested"
    """Verdict on the change of the weights from before the first step to the window's end."""

    update_difference: float | None = None
    """L2 norm of the difference of two updates over the baseline's norm; 0.1 is 10 %.

    Norms are over all trained tensors, in the worst round.
    """

    update_exact: bool = False
    """True if updates were compared element by element; false for estimates by sketches, whose
    standard error is 25 %."""

    update_norm_ratio: float | None = None
    """L2 norm of the stack's update over the norm of the baseline's update."""

    update_cosine: float | None = None
    """Cosine of the angle between the two updates."""

    update_tolerance: float | None = None
    """Allowed relative distance of the updates; null if nothing was compared."""

    update_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare the tolerance and that only one side uses; empty for the usual one."""

    update_excused: bool = False
    """True if only a plugin's declaration excuses a distance above the usual tolerance."""

    update_reason: str = ""
    """Reason for a verdict on the update other than `equivalent`."""

    optimizer_by_design: str = ""
    """Declared differences of the stack's optimizer from the baseline's; empty without any."""

    @property
    def update_word(self) -> str:
        """Verdict on the update in words, such as `within what NAME declares`."""
        return training_word(self.update_verdict, self.update_tolerance_by)

    @property
    def judged(self) -> tuple[Judged, ...]:
        """Verdicts on loss, update and output, each with its reason."""
        loss, update = f"its loss differs {self.loss_reason}", self.update_reason
        return (
            Judged(self.loss_verdict, self.loss_excused, self.loss_tolerance_by, loss),
            Judged(self.update_verdict, self.update_excused, self.update_tolerance_by, update),
            Judged(
                self.output_verdict,
                self.output_excused,
                self.output_tolerance_by,
                self.output_reason,
            ),
        )

    @property
    def excused(self) -> bool:
        """True if any verdict rests on a plugin's declaration alone."""
        return any(judged.excused for judged in self.judged)

    @property
    def generated(self) -> bool:
        """True if generated answers were compared, instead of training."""
        return self.loss_reason == ONLY_GENERATED

    @property
    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Verdict and its reason or tolerance, as texts, by `loss` and `update`, or by `output`."""
        if self.generated:
            return {"output": (self.output_word, self.output_reason)}
        return {
            "loss": (self.loss_word, self.loss_reason or self.loss_allowance),
            "update": (self.update_word, self.update_reason or self.optimizer_by_design),
        }

    @property
    def differs_by_design(self) -> bool:
        """True if any verdict is `different by design`."""
        return any(judged.verdict == "different by design" for judged in self.judged)

    @property
    def declared_by(self) -> tuple[str, ...]:
        """Plugins that declare a difference by design; empty without one."""
        by_design = (judged for judged in self.judged if judged.verdict == "different by design")
        return tuple(dict.fromkeys(name for judged in by_design for name in judged.declared_by))

    @property
    def untested(self) -> str:
        """Reason why the update or output has no verdict; empty with a verdict, or if neither run
        stored an update."""
        if self.generated:
            return self.output_reason if self.output_verdict == "not tested" else ""
        return self.update_reason if self.update_verdict == "not tested" else ""

    @property
    def training_difference(self) -> str:
        """Evidence that something else was trained or generated; empty if there is none."""
        different = (judged.reason for judged in self.judged if judged.verdict == "different")
        return "; ".join([*self.training_reasons, *different])

    @property
    def training_verdict(self) -> Training:
        """Worst verdict of loss, update and output; `not tested` if a missing update or output can
        change it."""
        if self.training_difference:
            return "different"
        if self.untested:
            return "not tested"
        return max((judged.verdict for judged in self.judged), key=get_args(Training).index)

    @property
    def not_the_same(self) -> str:
        """Differences of training or output that no declaration excuses; empty if there is none."""
        other = "; ".join(self.training_reasons)
        reasons = [f"different ({other})"] if other else []
        reasons += [
            f"{judged.verdict} ({judged.reason})"
            for judged in self.judged
            if judged.verdict.startswith("different") and not judged.excused
        ]
        return "; ".join(reasons)


class StackComparison(TrainingComparison, Comparison):
    """Comparison of a stack's speed and training with the baseline's, or of B's with A's."""

    @property
    def speed(self) -> Comparison:
        """Comparison of the speeds alone, without the training."""
        return Comparison(**{name: getattr(self, name) for name in Comparison.model_fields})

    @property
    def verdict_word(self) -> str:
        """Verdict on the speed in words, such as `faster` or `different output`."""
        word = super().verdict_word
        return word.replace("training", "output") if self.generated else word


def of_same_training(speed: Comparison, training: TrainingComparison) -> Comparison:
    """Return the comparison `speed` with the verdict on the training. A verdict `better` gets the
    difference in training as its reason, or is removed if the training was not tested."""
    changes: dict[str, str] = {"training": training.training_verdict}
    if speed.verdict == "better" and (different := training.training_difference):
        changes["verdict_reason"] = different
    elif speed.verdict == "better" and training.untested:
        speed = speed.without_verdict(training.untested)
    return speed.model_copy(update=changes)


def training_not_compared(reason: str) -> TrainingComparison:
    """Return a comparison without verdicts, with the given reason."""
    return TrainingComparison(loss_reason=reason, update_reason=reason)


def training_obstacle(training: TrainingComparison, reason: str = "") -> str:
    """Return the reason why equal training is not proven, or an empty text. `reason` is used if the
    comparison itself has no reason."""
    if different := training.not_the_same:
        return different
    if training.untested:
        return training.untested
    verdicts = {judged.verdict for judged in training.judged}
    shown = training.excused or bool(verdicts & ALIKE)
    if shown or training.loss_reason == NO_TRAINING:
        return ""
    why = training.loss_reason or training.update_reason or reason
    return f"its training is not shown to be the baseline's ({why or 'nothing was compared'})"
