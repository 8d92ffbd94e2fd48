"""Base class for plugins that are tasks: `Task`, and counts of the tokens in a batch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias

from accel_bench.engine import IGNORED_LABEL, Batch, Loss, own_loss
from accel_bench.plugin import OptionsT, Plugin, hookimpl
from accel_bench.scenario.uses import TOKENS, ModelUse

if TYPE_CHECKING:
    from accel_bench.run_context import Run

Labels: TypeAlias = Callable[[Any, int], tuple[Any, Any]]
"""Function of a sample's token ids, shape (length,), and its position in the endless order of
samples; returns inputs and labels of that shape. The result depends on the position alone, so that
each rank knows the labels of a whole step."""


class Held(NamedTuple):
    """Fewest and most processed, real and supervised elements that a batch's tensors may hold."""

    processed: tuple[int, int]
    real: tuple[int, int]
    supervised: tuple[int, int]


class Task(Plugin[OptionsT]):
    """Base of plugins that fill the slot `task`: the class of model to train, and its loss.

    The loss of a micro-batch is its sum over supervised elements divided by their number in the
    whole optimizer step, so that micro-batches and ranks add up.
    """

    counts: ClassVar[str] = TOKENS
    """Plural noun for the elements of `Batch.tokens`, such as `images`; speed is in them."""

    model_class: ClassVar[str] = "AutoModelForCausalLM"
    """Class of transformers that loads the task's models."""

    families: ClassVar[frozenset[str] | None] = None
    """Families of the catalog whose models the task trains; None means any."""

    pairs: ClassVar[Literal["labels", "stacked", "preferred"] | None] = None
    """Layout of data of pairs: the second of a pair as `labels`, all firsts above all seconds in
    one batch of inputs (`stacked`), or two answers of which one is `preferred`; None: no pairs."""

    batch_dependent: ClassVar[bool] = False
    """True if the loss of a sample depends on the other samples of its micro-batch, as in
    contrastive training; then smaller micro-batches are another training."""

    loss_sensitivity: ClassVar[float] = 1.0
    """Factor by which approximated weights change this loss more than a mean over tokens; it
    multiplies the loss tolerances of plugins."""

    update_sensitivity: ClassVar[float] = 1.0
    """Factor by which approximated weights change this task's updates more than those of a mean
    over tokens; it multiplies the update tolerances of plugins, up to 0.95."""

    loss_inputs: ClassVar[frozenset[str]] = frozenset({"labels", "shift_labels"})
    """Inputs of a batch that only the loss reads, and a prediction does not need."""

    def model_class_of(self, model: ModelUse) -> str:
        """Return the name of the transformers class for a model, by id or options of `model`."""
        return self.model_class

    def uses_loss_of_model(self) -> bool:
        """Return whether the model computes the loss itself, so that a fused kernel may do it.

        True if `build_loss` is not overridden. Override this if another `build_loss` calls the loss
        of the model too.
        """
        return type(self).build_loss is Task.build_loss

    def random_operations(self, model: Any) -> str:
        """Return a step's random operations except dropout, such as `Gumbel noise`; empty if none.

        A stack that draws random numbers in another order differs in loss and update by chance.
        """
        return ""

    def adjust_model(self, model: Any) -> None:
        """Change a model just loaded, such as by removing parts that the loss does not use."""

    def held(self, batch: Batch) -> Held | None:
        """Return the fewest and most elements that a batch's tensors may hold; None if unknown.

        A run is invalid if `Batch.tokens` lies outside these bounds in the first step. By default
        elements are tokens of `input_ids`, and each token with a label is supervised.
        """
        return held_tokens(batch)

    def labels_of(self, run: Run) -> Labels | None:
        """Return the function that makes a sample's inputs and labels; None if both are the tokens.

        Data plugins of tokens call this when they build batches.
        """
        return None

    @hookimpl
    def build_loss(self, run: Run) -> Loss:
        """Return the function that computes the loss, by default the model's own."""
        return own_loss


def held_tokens(batch: Batch, *, shifts: bool = False) -> Held | None:
    """Return the fewest and most tokens that a batch's tensors may hold; None without `input_ids`.

    Without a mask any token may be padding. A model that `shifts` its labels leaves the first label
    of each row out, unless the labels were shifted before.
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
    """Return a bool tensor, False for padding; None without a mask of the shape of `input_ids`."""
    mask, ids = batch.inputs.get("attention_mask"), batch.inputs.get("input_ids")
    if mask is None or ids is None or mask.shape != ids.shape:
        return None
    return mask != 0


def labelled(labels: Any) -> int:
    """Return the number of labels that enter the loss."""
    return int((labels != IGNORED_LABEL).sum())
