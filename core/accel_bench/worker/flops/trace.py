"""Workload of a decoder in training, derived from its modules.

A module's input needs a gradient if a module computed before it trains. In decoder layers the names
of the modules give their order; a module of an unknown name follows the one defined before it. A
model with other products, such as a convolution, has no workload.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn

from accel_bench.engine import Batch, own_loss
from accel_bench.flops.workload import Attention, Matmul, Workload
from accel_bench.modeling.blocks import decoder_blocks
from accel_bench.modeling.checkpointing import RECOMPUTES_LAST_MATMUL, CheckpointFunction
from accel_bench.modeling.contract import text_config
from accel_bench.modeling.random_weights import MODEL_CLASS
from accel_bench.run_context import Run
from accel_bench.worker.flops.matrices import (
    ModelFacts,
    UnknownPartError,
    WeightedModule,
    WeightMatrix,
    parts_of,
)

QUERY, KEY, VALUE = "q_proj", "k_proj", "v_proj"
QUERY_NORM, KEY_NORM = "q_norm", "k_norm"
FUSED = frozenset({"c_attn", "qkv_proj", "query_key_value", "Wqkv", "W_pack"})
OUTPUTS = frozenset({"o_proj", "out_proj", "attn.c_proj", "dense"})

STAGES: tuple[frozenset[str], ...] = (
    frozenset({"input_layernorm", "ln_1", "self_attn_layer_norm"}),
    frozenset({QUERY, KEY, VALUE, *FUSED}),
    frozenset({QUERY_NORM, KEY_NORM}),
    OUTPUTS,
    frozenset({"post_attention_layernorm", "ln_2", "final_layer_norm"}),
    frozenset("gate_proj up_proj gate_up_proj fc1 c_fc fc_in dense_h_to_4h w1 w3 gate".split())
    | {"experts", "pre_feedforward_layernorm"},
    frozenset("down_proj fc2 mlp.c_proj fc_out dense_4h_to_h w2".split()),
    frozenset({"post_feedforward_layernorm", "post_mlp_layernorm"}),
)
"""Modules of a decoder layer in the order of computation; modules of one stage have the same
input."""

MLP_STAGE = 4
"""Index in `STAGES` of the MLP's norm, with which the MLP begins."""

EXPERT = re.compile(r"(?P<list>.*\.experts)\.(?P<number>\d+)\.")
"""Pattern of the path of one expert, if experts are modules of their own."""

NUMBER = re.compile(r"\.\d+(?=\.|$)")
"""Pattern of the number of a layer or an expert in a path."""

OF_PRODUCT = set(Matmul.model_fields)
"""Fields that a `WeightMatrix` shares with `Matmul`."""

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
"""Configuration keys for the number of experts for each token."""


def read_workload(run: Run, batch: Batch | None = None) -> Workload | None:
    """Return the workload of the run's model, or the one that a plugin declares for unknown parts.

    Returns None, with the reason in `run.workload_reason`, if no plugin declares one. Decoder
    layers have causal self-attention; the products of other models are observed on `batch`. A
    compiled model has the workload of its uncompiled form.
    """
    try:
        if is_decoder(run):
            return _Reader(run).workload()
        return _observed(run, batch)
    except UnknownPartError as error:
        declared = run.workload
        if isinstance(declared, Workload):
            run.workload_reason = f"a plugin declares what cannot be counted: {error}"
            return _with_dtype(declared, run)
        run.workload_reason = f"FLOPs are not known: {error}"
        run.logger.warning(run.workload_reason)
        return None


def is_decoder(run: Run) -> bool:
    """Return whether the model is a text decoder that computes its loss itself: its modules then
    tell all matrix products of a step."""
    config = getattr(run.unwrapped_model, "config", None)
    causal = run.task is None or run.task.model_class == MODEL_CLASS
    own = run.loss is None or run.loss is own_loss
    return causal and own and not getattr(config, "is_encoder_decoder", False)


def _observed(run: Run, batch: Batch | None) -> Workload:
    """Return the workload observed in a pass on `batch`. Raises UnknownPartError for any error."""
    from accel_bench.worker.flops.observed import observe_workload

    if batch is None:
        raise UnknownPartError("no batch was seen whose products could be observed")
    try:
        return observe_workload(run, batch)
    except UnknownPartError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UnknownPartError(
            f"the observed pass failed: {type(error).__name__}: {reason}"
        ) from error


def _with_dtype(declared: Workload, run: Run) -> Workload:
    dtype = run.scenario.compute_dtype
    matmuls = (m.model_copy(update={"dtype": m.dtype or dtype}) for m in declared.matmuls)
    return declared.model_copy(update={"matmuls": tuple(matmuls)})


class _Reader:
    """Collector of a decoder's matrix products and attentions, in the order of computation."""

    def __init__(self, run: Run) -> None:
        self._model: nn.Module = run.unwrapped_model
        config = getattr(self._model, "config", None)
        self._config: Any = text_config(config)
        self._autocast = run.scenario.train.work_dtype
        experts = (getattr(self._config, key, None) for key in EXPERTS_PER_TOKEN)
        self._facts = ModelFacts(run.scenario.model.dtype, next(filter(None, experts), None))
        self._recomputes_last = run.recomputes_last_matmul
        self._matmuls: list[Matmul] = []
        self._attentions: list[Attention] = []
        self._gradient = False
        """True if a module read so far trains, so that the next module's input needs a gradient."""

    def workload(self) -> Workload:
        """Return the workload of the whole decoder."""
        path, layers = decoder_blocks(self._model)
        outside = [
            part
            for part in parts_of(self._model, "", self._facts)
            if not (path and part.path.startswith(f"{path}."))
        ]
        # Embeddings may be set to require a gradient although they do not train.
        hooks = (vars(module).get("_require_grads_hooks") for module in self._model.modules())
        self._gradient = any(hooks)
        self._read_outside(part for part in outside if layers and _is_before(part))
        for number, layer in enumerate(layers):
            self._read_layer(number, layer)
        self._read_outside(part for part in outside if not layers or not _is_before(part))
        matmuls = _merge(self._matmuls)
        return Workload(matmuls=tuple(matmuls), attentions=tuple(_merge(self._attentions)))

    def _read_outside(self, parts: Iterable[WeightedModule]) -> None:
        """Add the products of modules that are outside the decoder layers."""
        for part in parts:
            for matrix in part.matrices:
                name = matrix.name.removeprefix(part.path)
                leaf = part.path.removesuffix(".modules_to_save").rpartition(".")[2]
                renamed = matrix.model_copy(update={"name": leaf + name})
                self._add(renamed, self._gradient, part)
            self._gradient |= part.trains

    def _read_layer(self, number: int, layer: nn.Module) -> None:
        """Add matrix products and attention of decoder layer `number`, in the order of STAGES."""
        parts = _in_order(parts_of(layer, "layers", self._facts))
        fractions = _expert_fractions(parts, self._facts)
        parallel, first = _is_parallel(self._config, parts), len(self._matmuls)
        reads = {p: self._gradient or _follows_training(p, parts, parallel) for p, _ in parts}
        for place, part in parts:
            fraction = fractions.get(expert_list(part.path), 1.0)
            for matrix in part.matrices:
                reached = matrix.model_copy(update={"share": matrix.share * fraction})
                self._add(reached, reads[place], part)
        needs = {
            _leaf(part.path): part.trains or (bool(part.matrices) and reads[place])
            for place, part in parts
        }
        self._gradient |= any(part.trains for _, part in parts)
        matmuls, attention = _recomputed(layer, parts) if self._gradient else (False, False)
        if matmuls is not False:
            left = 0 if _is_whole(layer) else self._left_out([part for _, part in parts])
            last = len(self._matmuls) - left
            self._matmuls[first:last] = [
                matmul.model_copy(update={"recomputed": matmuls})
                for matmul in self._matmuls[first:last]
            ]
        self._attentions.append(self._attention(number, parts, needs, attention))

    def _left_out(self, parts: Sequence[WeightedModule]) -> int:
        """Return how many of a layer's last matrix products checkpointing does not recompute."""
        if vars(parts[-1].parent).get(RECOMPUTES_LAST_MATMUL) is False:
            return len(parts[-1].matrices)
        return int(_stops_early(parts, self._recomputes_last))

    def _add(self, matrix: WeightMatrix, gradient: bool, part: WeightedModule) -> None:
        """Add the product of a matrix of `part`; `gradient` is True if an earlier module trains."""
        inner = any(other.trains for other in part.matrices if other.name in matrix.after)
        fields = {
            "name": NUMBER.sub("", matrix.name),
            "input_needs_gradient": gradient or inner,
            "dtype": (matrix.autocast and self._autocast) or matrix.dtype,
        }
        self._matmuls.append(Matmul(**matrix.model_dump(include=OF_PRODUCT) | fields))

    def _attention(
        self,
        number: int,
        parts: Sequence[tuple[float, WeightedModule]],
        needs: dict[str, bool],
        recomputed: bool | None,
    ) -> Attention:
        """Return a layer's attention; `needs` has whether a module's output needs a gradient."""
        modules = {_leaf(part.path): part for _, part in parts if part.matrices}
        heads = getattr(self._config, "num_attention_heads", None)
        output = next((modules[name] for name in OUTPUTS if name in modules), None)
        fused = next((name for name in FUSED if name in modules), None)
        names = [fused or name for name in (QUERY, KEY, VALUE)]
        if not heads or output is None or not all(name in modules for name in names):
            raise UnknownPartError(f"no attention is known in layer {number}")
        value_size = output.matrices[0].columns // heads
        query_size = value_size if fused else modules[QUERY].matrices[0].rows // heads
        query, key, value = (needs[name] for name in names)
        return Attention(
            heads=heads,
            query_size=query_size,
            value_size=value_size,
            window=_window(self._config, number),
            query_needs_gradient=query or needs.get(QUERY_NORM, False),
            key_needs_gradient=key or needs.get(KEY_NORM, False),
            value_needs_gradient=value,
            recomputed=recomputed,
        )


def _in_order(parts: Iterable[WeightedModule]) -> list[tuple[float, WeightedModule]]:
    """Return pairs (index in STAGES, module) in order; an unknown name follows its predecessor."""
    placed: list[tuple[float, WeightedModule]] = []
    place = -1.0
    for part in parts:
        leaf = _leaf(part.path)
        known = (number for number, names in enumerate(STAGES) if leaf in names)
        place = next(known, place + 1 / 1024)
        placed.append((place, part))
    return sorted(placed, key=lambda item: item[0])


def _leaf(path: str) -> str:
    """Return the last part of a module's path; `attn.c_proj` or `mlp.c_proj` for `c_proj`."""
    parents, _, leaf = path.removesuffix(".modules_to_save").rpartition(".")
    if leaf != "c_proj":
        return leaf
    return "attn.c_proj" if "attn" in parents.rpartition(".")[2] else "mlp.c_proj"


def _follows_training(
    place: float, parts: Sequence[tuple[float, WeightedModule]], parallel: bool
) -> bool:
    """Return whether a trained module's output feeds the modules with index `place` in STAGES. In a
    `parallel` layer attention does not feed the MLP."""
    beside = parallel and place >= MLP_STAGE
    return any(
        part.trains and not (beside and 0 < other < MLP_STAGE)
        for other, part in parts
        if other < place
    )


def _is_parallel(config: Any, parts: Sequence[tuple[float, WeightedModule]]) -> bool:
    """Return whether MLP and attention share an input, by `config` or for lack of an MLP norm."""
    if getattr(config, "use_parallel_residual", False):
        return True
    return any(place == 0 for place, _ in parts) and not any(
        place == MLP_STAGE or "pre_feedforward" in part.path for place, part in parts
    )


def _is_before(part: WeightedModule) -> bool:
    """Return whether a module outside the layers is computed before them, as an embedding is."""
    leaf = part.path.rpartition(".")[2]
    return isinstance(part.module, nn.Embedding) or "embed" in leaf or leaf == "project_in"


def expert_list(path: str) -> str:
    """Return the path of the list of experts that a module is in; empty if it is in none."""
    match = EXPERT.match(f"{path}.")
    return match["list"] if match else ""


def _expert_fractions(
    parts: Sequence[tuple[float, WeightedModule]], facts: ModelFacts
) -> dict[str, float]:
    """Return the fraction of tokens that each expert of a list gets, by the path of the list."""
    matches = filter(None, (EXPERT.match(f"{part.path}.") for _, part in parts))
    experts = Counter(name for name, _ in {(match["list"], match["number"]) for match in matches})
    if experts and facts.experts_per_token is None:
        raise UnknownPartError(f"{next(iter(experts))}: it is not known how many a token uses")
    return {name: (facts.experts_per_token or 0) / count for name, count in experts.items()}


def _window(config: Any, number: int) -> int | None:
    """Return the width in tokens of layer `number`'s attention window; None for full attention."""
    kinds = getattr(config, "layer_types", None)
    kind = kinds[number] if kinds else "sliding_attention"
    if kind not in ("full_attention", "sliding_attention"):
        raise UnknownPartError(f"layer {number} is of type {kind}")
    window = getattr(config, "sliding_window", None)
    return window if kind == "sliding_attention" else None


def is_recomputed(layer: nn.Module) -> bool:
    """Return whether a layer recomputes activations, by an attribute that transformers sets."""
    return bool(getattr(layer, "gradient_checkpointing", False)) and layer.training


def _recomputed(
    layer: nn.Module, parts: Sequence[tuple[float, WeightedModule]]
) -> tuple[bool | None, bool | None]:
    """Return whether a layer recomputes its matmuls, and whether its attention (None: unknown)."""
    if not is_recomputed(layer):
        return False, False
    function = getattr(layer, "_gradient_checkpointing_func", None)
    if not isinstance(function, CheckpointFunction):
        return True, True
    matmuls, attention = function.recomputes(sum(len(part.matrices) for _, part in parts))
    # What a compiled call computes, a function around it does not see operation by operation.
    return (matmuls, attention) if matmuls or not _is_whole(layer) else (None, None)


def last_matmul(model: nn.Module) -> nn.Module | None:
    """Return the module of the last matmul in a decoder layer, if that is one linear layer.

    It is in the last recomputed layer, or else in the last layer. Returns None for a module with an
    adapter, and for a model of unknown structure.
    """
    _, layers = decoder_blocks(model)
    layers = [layer for layer in layers if is_recomputed(layer)] or layers
    try:
        parts = [part for _, part in _in_order(parts_of(layers[-1], "layers", ModelFacts("", 1)))]
    except (UnknownPartError, IndexError):
        return None
    alone = parts and len(parts[-1].matrices) == 1 and not expert_list(parts[-1].path)
    return parts[-1].module if alone else None


def _is_whole(layer: nn.Module) -> bool:
    """Return whether a layer is compiled together with its checkpointing, as it is by transformers
    before 5.23."""
    compiled = getattr(layer, "_compiled_call_impl", None) is not None
    return compiled and type(layer).__call__ is not nn.Module.__call__


def _stops_early(parts: Sequence[WeightedModule], recomputes: bool | None) -> bool:
    """Return whether activation checkpointing does not recompute a layer's last matrix product.

    `recomputes` says whether this product was seen to be recomputed. If it is None, torch's rules
    decide: checkpointing stops as soon as all saved tensors exist again, and a linear saves its
    input before it starts. So the product is recomputed only if its output is saved, as by dropout.
    """
    last = parts[-1]
    if recomputes is not None and len(last.matrices) == 1:
        return not recomputes
    experts = any(expert_list(p.path) or any(m.share != 1 for m in p.matrices) for p in parts)
    if experts or not last.matrices or not last.matrices[-1].plain:
        return False
    kept = vars(last.parent).get("dropout") or last.parent._modules.get("dropout")
    probability = kept.p if isinstance(kept, nn.Dropout) else kept
    return not (isinstance(probability, float) and probability > 0)


def _merge(kinds: Sequence[Any]) -> Iterator[Any]:
    """Yield each different product or attention once, in order of appearance, with its count."""
    counts: Counter[Any] = Counter()
    for kind in kinds:
        counts[kind.model_copy(update={"count": 1})] += kind.count
    for kind, count in counts.items():
        yield kind.model_copy(update={"count": count})
