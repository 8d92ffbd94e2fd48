"""What the author of a task subclasses: `Task`, and what a batch holds of what it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from accel_bench.engine import IGNORED_LABEL, Batch, Loss, own_loss
from accel_bench.plugin import OptionsT, Plugin, hookimpl
from accel_bench.scenario.uses import TOKENS, ModelUse

if TYPE_CHECKING:
    from accel_bench.run_context import Run

Labels: TypeAlias = Callable[[Any, int], tuple[Any, Any]]
"""Takes the token ids of a sample, shape (its length,), and its place in the endless order of
samples; returns inputs and labels of that shape. The place alone decides, so that each rank knows
the labels of a whole step."""


class Held(NamedTuple):
    """What the tensors of a batch hold: the fewest and the most that may be counted."""

    processed: tuple[int, int]
    real: tuple[int, int]
    supervised: tuple[int, int]


class Task(Plugin[OptionsT]):
    """Base of plugins that fill the slot `task`: which models are trained, by which loss.

    The loss of a micro-batch is its sum over supervised elements divided by those of the whole
    optimizer step, so that micro-batches and ranks add up.
    """

    counts: ClassVar[str] = TOKENS
    """What `Batch.tokens` counts, such as `images`: its speed is the stack's speed."""

    model_class: ClassVar[str] = "AutoModelForCausalLM"
    """Class of transformers that loads its models."""

    families: ClassVar[frozenset[str] | None] = None
    """Families of the catalog whose models it trains; None means any."""

    pairs: ClassVar[Literal["labels", "stacked", "preferred"] | None] = None
    """How it reads data of pairs: the second of a pair as `labels`, or all firsts above all seconds
    in one batch of inputs, or as answers of which one is `preferred`; None: not at all."""

    batch_dependent: ClassVar[bool] = False
    """True if the loss of a sample depends on the others of its micro-batch, as where they are what
    it is told apart from; then smaller micro-batches are another training."""

    loss_sensitivity: ClassVar[float] = 1.0
    """Factor by which approximated weights change this loss more than a mean over tokens; the loss
    tolerances that plugins declare are multiplied by it."""

    update_sensitivity: ClassVar[float] = 1.0
    """Factor by which approximated weights change this task's updates more than those of a mean
    over tokens; the update tolerances that plugins declare are multiplied by it, up to 0.95."""

    loss_inputs: ClassVar[frozenset[str]] = frozenset({"labels", "shift_labels"})
    """Inputs of a batch that the loss reads: a prediction does without them."""

    def model_class_of(self, model: ModelUse) -> str:
        """Return the `model_class` of one model, by its id or the options."""
        return self.model_class

    def uses_loss_of_model(self) -> bool:
        """Return whether the model computes the loss itself, so that a fused kernel may do it.

        It does where `build_loss` is not overridden. Override this where another `build_loss` calls
        the loss of the model too.
        """
        return type(self).build_loss is Task.build_loss

    def random_operations(self, model: Any) -> str:
        """Return what the steps of a model draw at random beside dropout, such as `Gumbel noise`;
        empty if nothing.

        A stack that draws it in another order has another loss and another update by chance.
        """
        return ""

    def adjust_model(self, model: Any) -> None:
        """Change a model just loaded, such as to take off what the loss does not use."""

    def held(self, batch: Batch) -> Held | None:
        """Return what a batch's tensors hold of what is counted; None where they do not tell.

        The first step is invalid where `Batch.tokens` says something else. Here they are tokens of
        `input_ids`, and each that has a label is supervised.
        """
        return held_tokens(batch)

    def labels_of(self, run: Run) -> Labels | None:
        """Return what makes inputs and labels of a sample of tokens; None where both are the
        tokens.

        For data of tokens, which calls it when it builds batches.
        """
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the loss that the model computes itself."""
        return own_loss


def held_tokens(batch: Batch, *, shifts: bool = False) -> Held | None:
    """Return how many tokens `input_ids` and `labels` of a batch hold; None without ids.

    Without a mask any of them may be padding. A model that `shifts` its labels leaves the first of
    each row out, unless they were shifted before.
    """
    ids, mask = batch.inputs.get("input_ids"), token_mask(batch)
    if ids is None:
        return None
    size = int(ids.numel())
    real = (0, size) if mask is None else (int(mask.sum()), int(mask.sum()))
    labels, shifted = batch.inputs.get("labels"), batch.inputs.get("shift_labels")
    supervised = (0, size)
    if shifted is not None:
        supervised = (labelled(shifted), labelled(shifted))
    elif labels is not None:
        supervised = (labelled(labels[..., 1:] if shifts else labels), labelled(labels))
    return Held((size, size), real, supervised)


def token_mask(batch: Batch) -> Any:
    """Return where `input_ids` are real; None where no mask of their shape says it."""
    mask, ids = batch.inputs.get("attention_mask"), batch.inputs.get("input_ids")
    if mask is None or ids is None or mask.shape != ids.shape:
        return None
    return mask != 0


def labelled(labels: Any) -> int:
    """Return the number of labels that the loss is computed on."""
    return int((labels != IGNORED_LABEL).sum())
