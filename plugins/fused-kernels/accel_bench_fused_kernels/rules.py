"""Table of the modules in each model architecture that fused kernels can replace.

Rules are names and numbers only: names of the modeling module's classes by what they compute, and
settings by which the model computes logits from the decoder's output. A new architecture needs a
new entry. All other code of a model stays, such as Granite's multipliers of embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NormRule:
    """Rule for replacing an architecture's RMS norms: their class names and their arithmetic."""

    classes: frozenset[str]
    """Names of the norm classes, with attributes `weight` and `variance_epsilon` or `eps`."""

    offset: float = 0.0
    """Number added to the weights: 1 if they are stored as differences from one."""

    in_float32: bool = False
    """True to multiply by weights in float32 before rounding, False after it in the inputs'
    dtype."""

    shared_gradient: frozenset[str] = frozenset()
    """Name endings of norms whose output is added to the residual stream. They receive the stream's
    own gradient, which their backward must not overwrite."""


@dataclass(frozen=True)
class LossRule:
    """Rule by which an architecture computes its loss, beyond plain cross-entropy of logits."""

    divisor: str | None = None
    """Configuration key of the number by which logits are divided."""

    softcap: str | None = None
    """Configuration key of the tanh bound of logits, whose value may be null."""

    router: str | None = None
    """Name of the modeling module's function for a router's auxiliary loss."""

    output: str = "CausalLMOutputWithPast"
    """Name of the model's output class in `transformers.modeling_outputs`."""


@dataclass(frozen=True)
class Rules:
    """Rules for replacing the modules of an architecture; an empty field replaces nothing."""

    norms: NormRule | None = None
    """Rule how to replace the architecture's RMS norms."""

    rotary: str | None = None
    """Name of the modeling module's function that rotates queries and keys: `(q, k, cos, sin,
    unsqueeze_dim=1)`."""

    gated_mlps: frozenset[str] = frozenset()
    """Names of MLP classes that compute `down_proj(act_fn(gate_proj(x)) * up_proj(x))`."""

    experts: frozenset[str] = frozenset()
    """Names of experts' classes with a method `_apply_gate(gate_and_up)`."""

    loss: LossRule = field(default_factory=LossRule)
    """Rule how the architecture computes its loss."""


ROTARY = "apply_rotary_pos_emb"
"""Usual name of the function that applies the rotary embedding."""


def _plain(family: str, loss: LossRule | None = None) -> Rules:
    """Return the rules of an architecture like Llama. `family` is the prefix of its class names,
    and `loss` the rule of its loss if it is not plain cross-entropy."""
    return Rules(
        norms=NormRule(frozenset({f"{family}RMSNorm"})),
        rotary=ROTARY,
        gated_mlps=frozenset({f"{family}MLP"}),
        loss=loss or LossRule(),
    )


def _gemma(family: str, loss: LossRule | None = None, shared: tuple[str, ...] = ()) -> Rules:
    """Return the rules of an architecture like Gemma: norm weights are differences from one, and
    norms compute in float32.

    `family` is the prefix of its class names, `loss` the rule of its loss, and `shared` the names
    of norms whose output is added to the residual stream.
    """
    norms = NormRule(
        frozenset({f"{family}RMSNorm"}),
        offset=1.0,
        in_float32=True,
        shared_gradient=frozenset(shared),
    )
    return Rules(
        norms=norms,
        rotary=ROTARY,
        gated_mlps=frozenset({f"{family}MLP"}),
        loss=loss or LossRule(),
    )


def _experts(family: str, divisor: str | None = None) -> Rules:
    """Return the rules of a mixture-of-experts architecture like Mixtral.

    `family` is the prefix of its class names, and `divisor` the configuration key of the number by
    which logits are divided.
    """
    loss = LossRule(
        divisor=divisor, router="load_balancing_loss_func", output="MoeCausalLMOutputWithPast"
    )
    return Rules(
        norms=NormRule(frozenset({f"{family}RMSNorm"})),
        rotary=ROTARY,
        experts=frozenset({f"{family}Experts"}),
        loss=loss,
    )


_CAPPED = LossRule(softcap="final_logit_softcapping")
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")

RULES: dict[str, Rules] = {
    "GPTBigCodeForCausalLM": Rules(loss=LossRule(output="CausalLMOutputWithCrossAttentions")),
    "Gemma2ForCausalLM": _gemma("Gemma2", _CAPPED, _AFTER),
    "Gemma3ForCausalLM": _gemma("Gemma3", _CAPPED, _AFTER),
    "GemmaForCausalLM": _gemma("Gemma"),
    "GraniteForCausalLM": _plain("Granite", LossRule(divisor="logits_scaling")),
    "GraniteMoeForCausalLM": _experts("GraniteMoe", "logits_scaling"),
    "LlamaForCausalLM": _plain("Llama"),
    "MistralForCausalLM": _plain("Mistral"),
    "MixtralForCausalLM": _experts("Mixtral"),
    "Qwen2ForCausalLM": _plain("Qwen2"),
    "Qwen3ForCausalLM": _plain("Qwen3"),
    "T5ForConditionalGeneration": Rules(norms=NormRule(frozenset({"T5LayerNorm"}))),
}
"""Rules of each architecture by the class name of its language model."""


def missing(rules: Rules, part: str) -> bool:
    """Return whether the rules lack what a kind of kernel, such as `rms_norm`, would replace."""
    return {
        "rms_norm": rules.norms is None,
        "rope": rules.rotary is None,
        "gated_mlp": not rules.gated_mlps and not rules.experts,
    }.get(part, False)
