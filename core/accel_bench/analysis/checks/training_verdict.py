"""Did a stack train the same? The verdicts, and what follows from them."""

from __future__ import annotations

from typing import NamedTuple, get_args

from accel_bench.analysis.checks.convergence import LossComparison
from accel_bench.analysis.checks.outputs import OutputComparison
from accel_bench.analysis.statistics.verdict import ALIKE, Comparison, Training
from accel_bench.analysis.wording import training_word

NO_TRAINING = "nothing is trained: one operation is called on its own"
"""Why nothing is compared where calls are counted in the place of tokens."""

ONLY_GENERATED = "nothing is trained: the model answers requests"
"""Why neither losses nor updates are compared in mode inference."""


class Judged(NamedTuple):
    """One verdict of a comparison."""

    verdict: Training
    excused: bool
    """True if it counts as that of the same training by a plugin's declaration alone."""

    declared_by: tuple[str, ...]
    reason: str


class TrainingComparison(OutputComparison, LossComparison):
    """A stack's loss and update against the baseline's, or those of B against those of A; in mode
    inference, what it generated."""

    training_reasons: tuple[str, ...] = ()
    """How what trains is not what trains in the baseline; empty where it is."""

    update_verdict: Training = "not tested"
    """Verdict on the change of the weights, from before the first step to the end of the window."""

    update_difference: float | None = None
    """Distance of the two changes over the size of the baseline's, of the worst round; 0.1 is 10 %.

    Both are L2 norms over all trained tensors.
    """

    update_exact: bool = False
    """True if the two runs' changes were compared number by number; else sketches estimate the
    distance, with a standard error of 25 %, and size and cosine with it."""

    update_norm_ratio: float | None = None
    """Size of the stack's change over that of the baseline's."""

    update_cosine: float | None = None
    """Cosine of the angle between the two changes."""

    update_tolerance: float | None = None
    """Distance that is allowed; null where nothing was compared."""

    update_tolerance_by: tuple[str, ...] = ()
    """Plugins that declare it, of those that one side alone uses; empty where none does."""

    update_excused: bool = False
    """True if the update counts as that of the same training by a plugin's declaration alone: it is
    beyond the usual tolerance."""

    update_reason: str = ""
    """Why the verdict on the update is not `equivalent`."""

    optimizer_by_design: str = ""
    """Declared differences of its optimizer from the baseline's; empty without any."""

    @property
    def update_word(self) -> str:
        """The verdict as people read it."""
        return training_word(self.update_verdict, self.update_tolerance_by)

    @property
    def judged(self) -> tuple[Judged, ...]:
        """The verdicts on loss, update and output."""
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
        """True if a verdict counts as that of the same training by a declaration alone."""
        return any(one.excused for one in self.judged)

    @property
    def generated(self) -> bool:
        """True if answers were compared, and not trainings."""
        return self.loss_reason == ONLY_GENERATED

    @property
    def verdicts(self) -> dict[str, tuple[str, str]]:
        """Verdicts in words with their reasons, or with what was allowed, by what they are on."""
        if self.generated:
            return {"output": (self.output_word, self.output_reason)}
        return {
            "loss": (self.loss_word, self.loss_reason or self.loss_allowance),
            "update": (self.update_word, self.update_reason or self.optimizer_by_design),
        }

    @property
    def differs_by_design(self) -> bool:
        """True if a verdict is that it differs, and no more than a plugin or a setting declares."""
        return any(one.verdict == "different by design" for one in self.judged)

    @property
    def declared_by(self) -> tuple[str, ...]:
        """Plugins that declare how far it differs by design; empty where it does not."""
        by_design = (one for one in self.judged if one.verdict == "different by design")
        return tuple(dict.fromkeys(name for one in by_design for name in one.declared_by))

    @property
    def untested(self) -> str:
        """Why nothing shows that the work is the same; empty where something does, or where there
        is nothing to show: of two that have stored no update the loss alone decides."""
        if self.generated:
            return self.output_reason if self.output_verdict == "not tested" else ""
        return self.update_reason if self.update_verdict == "not tested" else ""

    @property
    def training_difference(self) -> str:
        """What shows that something else was trained; empty where nothing does."""
        different = (one.reason for one in self.judged if one.verdict == "different")
        return "; ".join([*self.training_reasons, *different])

    @property
    def training_verdict(self) -> Training:
        """The verdict on all of it: the worst one of loss, update and output, and none where what
        is missing leaves it open."""
        if self.training_difference:
            return "different"
        if self.untested:
            return "not tested"
        return max((one.verdict for one in self.judged), key=get_args(Training).index)

    @property
    def not_the_same(self) -> str:
        """What keeps the training from being the same, by design too; empty where nothing does, or
        only what a declaration excuses."""
        other = "; ".join(self.training_reasons)
        found = [f"different ({other})"] if other else []
        found += [
            f"{one.verdict} ({one.reason})"
            for one in self.judged
            if one.verdict.startswith("different") and not one.excused
        ]
        return "; ".join(found)


class StackComparison(TrainingComparison, Comparison):
    """A stack's speed and training against the baseline's, or those of B against those of A."""

    @property
    def speed(self) -> Comparison:
        """The comparison of the speeds alone."""
        return Comparison(**{name: getattr(self, name) for name in Comparison.model_fields})

    @property
    def verdict_word(self) -> str:
        """The verdict on the speed as people read it; other answers are a `different output`."""
        word = super().verdict_word
        return word.replace("training", "output") if self.generated else word


def of_same_training(speed: Comparison, training: TrainingComparison) -> Comparison:
    """Return the speed with the verdict on the training behind it: a better one says why it is not
    for the same training, and gets no verdict where a missing update leaves that open."""
    changes: dict[str, str] = {"training": training.training_verdict}
    if speed.verdict == "better" and (different := training.training_difference):
        changes["verdict_reason"] = different
    elif speed.verdict == "better" and training.untested:
        speed = speed.without_verdict(training.untested)
    return speed.model_copy(update=changes)


def training_not_compared(reason: str) -> TrainingComparison:
    """Return that nothing was compared, and why."""
    return TrainingComparison(loss_reason=reason, update_reason=reason)


def training_obstacle(training: TrainingComparison, reason: str = "") -> str:
    """Return why a training is not shown to be the baseline's; empty where it is."""
    if different := training.not_the_same:
        return different
    if training.untested:
        return training.untested
    verdicts = {one.verdict for one in training.judged}
    shown = training.excused or bool(verdicts & ALIKE)
    if shown or training.loss_reason == NO_TRAINING:
        return ""
    why = training.loss_reason or training.update_reason or reason
    return f"its training is not shown to be the baseline's ({why or 'nothing was compared'})"
