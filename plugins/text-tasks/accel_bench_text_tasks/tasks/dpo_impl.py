"""Loss of direct preference optimization, and its reference model."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.modeling.blocks import adapter_modules
from accel_bench.modeling.loading import load_other_model
from accel_bench.modeling.losses import IGNORED_LABEL
from accel_bench.modeling.tensor_parallel import divide_matrices
from accel_bench.modeling.tensors import is_simulated
from accel_bench_text_tasks.tasks.dpo import DPO, DPOOptions

DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
"""Classes of dropout modules."""

DROPOUT_WORDS = ("dropout", "pdrop")
"""Substrings of the names of configuration keys and attributes that are dropout probabilities."""


class PreferenceLoss:
    """DPO loss: the sum over pairs, divided by the number of pairs in the step.

    The loss of a pair is -log sigmoid(beta x ((log p_chosen - log q_chosen) - (log p_rejected - log
    q_rejected))), p of the policy and q of the reference (equation 7 of arXiv:2305.18290). With
    `nll_scale` the mean of -log p over the tokens of the step's chosen answers is added.
    """

    def __init__(self, run: Run, options: DPOOptions, copied: Any = None) -> None:
        """Store the reference model, which is `copied` unless that is None.

        Raises ScenarioError for data without pairs.
        """
        if not hasattr(run.dataset, "sequences") and not is_simulated():
            use = run.scenario.data.use
            raise ScenarioError(
                f"task dpo compares pairs of answers, and data.use {use!r} has none: use "
                "`preferences`"
            )
        self._options = options
        self._policy = run.unwrapped_model
        self._reference, self._what = reference_of(run, options, copied)
        self._margin: torch.Tensor | None = None

    def __call__(
        self, model: Any, inputs: Mapping[str, Any], supervised_in_step: int
    ) -> torch.Tensor:
        """Return the loss of a micro-batch, a tensor of shape (). `supervised_in_step` is the
        step's number of pairs."""
        options, labels = self._options, inputs["labels"][:, 1:]
        with torch.no_grad():
            expected = token_log_probabilities(self._of_reference(inputs), labels)
            reference = self._per_answer(expected, labels)
        log_probabilities = token_log_probabilities(self._of(model, inputs), labels)
        policy = self._per_answer(log_probabilities, labels)
        chosen, rejected = (policy - reference).chunk(2)
        margin = options.beta * (chosen - rejected)
        if torch.is_grad_enabled():  # An evaluation is no evidence of training.
            self._margin = margin.detach()
        loss: torch.Tensor = -functional.logsigmoid(margin).sum() / supervised_in_step
        if options.nll_scale:
            of_chosen = log_probabilities.chunk(2)[0].sum()
            loss = loss - options.nll_scale * of_chosen / inputs["chosen_tokens"][0]
        return loss

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence: reference, options, and the last micro-batch's reward margin."""
        reference = self._policy if self._reference is None else self._reference
        result: dict[str, Any] = {"reference": self._what, **self._options.model_dump(mode="json")}
        if isinstance(reference, DividedReference):
            result["reference_divided_matrices"] = reference.divided
            reference = reference.model
        result["reference_layers"] = layers_of(reference)
        if self._margin is not None:
            result["last_margin"] = float(self._margin.mean())
            result["last_accuracy"] = float((self._margin > 0).float().mean())
        return result

    def _of(self, model: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return a model's logits for the inputs, of shape (sequences, length, vocabulary)."""
        logits: torch.Tensor = model(
            **{name: value for name, value in inputs.items() if name not in DPO.loss_inputs}
        ).logits
        return logits

    def _of_reference(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        if self._reference is not None:
            return self._of(self._reference, inputs)
        trained = self._trained
        with self._policy.disable_adapter():
            # PEFT says that they do not train meanwhile, which gathered copies would keep.
            for parameter in trained:
                parameter.requires_grad_(True)
            return self._of(self._policy, inputs)

    @cached_property
    def _trained(self) -> list[nn.Parameter]:
        """Parameters of the policy that require a gradient, collected in the first step."""
        return [parameter for parameter in self._policy.parameters() if parameter.requires_grad]

    def _per_answer(self, log_probabilities: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the sum of the tokens' log-probabilities in each answer, of shape (sequences,).

        With the option `length_normalization`, a sum is divided by the answer's number of labels.
        """
        of_answers = log_probabilities.sum(dim=1)
        if self._options.length_normalization:
            of_answers = of_answers / (labels != IGNORED_LABEL).sum(dim=1)
        return of_answers


def token_log_probabilities(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the log-probability of each label in float32, or 0 for an ignored label.

    `logits` have shape (sequences, length, vocabulary). `labels` and the result have shape
    (sequences, length - 1), for the tokens that follow.
    """
    flat = logits[:, :-1].flatten(0, 1).float()
    losses = functional.cross_entropy(
        flat, labels.flatten(), ignore_index=IGNORED_LABEL, reduction="none"
    )
    return -losses.view(labels.shape)


def reference_of(run: Run, options: DPOOptions, copied: Any) -> tuple[Any, str]:
    """Return the reference model and its description in words.

    The model is None if the policy without its adapter is the reference. `copied` is a copy of the
    policy before adapters, or None.
    """
    if options.reference_model is None and hasattr(run.unwrapped_model, "disable_adapter"):
        return None, "the base, without the adapter, as the stack accelerates it"
    if options.reference_model is not None:
        what = options.reference_model
        model = frozen(load_other_model(run, what))
    elif copied is not None:
        model, what = copied, "a copy of the policy as it was loaded"
    else:
        model, what = copy_of(run.unwrapped_model), "a copy of the first policy"
    size = options.reference_tensor_parallel_size
    # A rehearsal is one process, and so is a simulation: each holds it whole.
    if size == 1 or run.world_size != run.scenario.world_size or is_simulated():
        return model, what
    return DividedReference(run, model, size), f"{what}, divided over {size} devices"


def layers_of(model: nn.Module) -> dict[str, int]:
    """Return the number of a model's linear layers by class name, without adapters' layers.

    If a layer's weight is of another class than Parameter, the key also names that class.
    """
    left_out = adapter_modules(model)
    counts: Counter[str] = Counter()
    for module in model.modules():
        # PEFT wraps the layers that it adapts.
        if hasattr(module, "in_features") and not hasattr(module, "base_layer"):
            weight = type(getattr(module, "weight", None))
            own = "" if weight in (nn.Parameter, type(None)) else f" of {weight.__name__}"
            counts[type(module).__name__ + own] += id(module) not in left_out
    return {name: count for name, count in sorted(counts.items()) if count}


def copy_of(model: Any) -> Any:
    """Return a frozen copy of a model, in evaluation mode."""
    copies: dict[int, torch.Tensor] = {}
    if is_simulated():  # A deep copy would ask for the address of a tensor.
        copies |= {id(tensor): tensor.clone() for tensor in model.buffers()}
        copies |= {
            id(tensor): nn.Parameter(tensor.detach().clone()) for tensor in model.parameters()
        }
    return frozen(copy.deepcopy(model, copies))


def turn_dropout_off(model: nn.Module) -> None:
    """Set all dropout probabilities of a model to 0: in modules, attributes and configurations."""
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.p = 0.0
        _set_to_zero(module)
    if (config := getattr(model, "config", None)) is not None:
        _set_to_zero(config)


def _set_to_zero(owner: Any) -> None:
    """Set the attributes of an object that are named like dropout probabilities to 0."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, float) and any(word in name for word in DROPOUT_WORDS):
            setattr(owner, name, 0.0)


def frozen(model: Any) -> Any:
    """Return the same model after freezing its parameters and disabling its dropout."""
    return model.requires_grad_(False).train(False)


class DividedReference:
    """Reference model whose matrices are divided over consecutive ranks.

    The ranks of a group compute the batches of all its ranks together, one batch after another, and
    each rank keeps the output of its own. Ranks that share the policy share a batch: it is computed
    once.
    """

    def __init__(self, run: Run, model: Any, size: int) -> None:
        """Divide the model in place, over groups of `size` ranks. Raises ScenarioError if it cannot
        be divided."""
        shape = (run.world_size // size, size)
        names = ("groups", "tensor")
        mesh = init_device_mesh(run.device.type, shape, mesh_dim_names=names)["tensor"]
        self.divided = divide_matrices(model, mesh, "task.reference_tensor_parallel_size")
        """Number of divided matrices, by parallel style in the model's plan."""

        self.model = model
        """The divided model, of which this rank holds a part."""

        self._group = mesh.get_group()
        self._rank = mesh.get_local_rank()
        sharing = min(size, run.world_size // run.data_parallel)
        self._owners = range(0, size, sharing)
        self._own = self._rank - self._rank % sharing

    def __call__(self, **inputs: torch.Tensor) -> Any:
        """Return the model's output for this rank's inputs. All ranks of a group must call it
        together."""
        if len(self._owners) == 1:
            return self.model(**inputs)
        own_output: Any = None
        for owner in self._owners:
            shared = {name: self._shared(inputs[name], owner) for name in sorted(inputs)}
            output = self.model(**shared)
            own_output = output if owner == self._own else own_output
        return own_output

    def _shared(self, tensor: torch.Tensor, owner: int) -> torch.Tensor:
        """Send the tensor of the rank `owner` to all ranks of the group, and return it on each. The
        shapes of the ranks' tensors may differ."""
        shape = torch.tensor(tensor.shape, device=tensor.device)
        distributed.broadcast(shape, group=self._group, group_src=owner)
        own = owner == self._rank
        sent = tensor.contiguous() if own else tensor.new_empty(shape.tolist())
        distributed.broadcast(sent, group=self._group, group_src=owner)
        return sent
