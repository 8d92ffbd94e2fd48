"""Table of the parts of each architecture, to be extended for a new one.

Rules are names and numbers only: classes of the modeling module by their computation, and how the
model computes logits from the decoder's output. Everything else remains, such as Granite's
multipliers of embeddings, attention and residuals.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class NormRule:
    """Rule for an architecture's RMS norms."""

    classes: frozenset[str]
    """Names of the norm classes, with attributes `weight` and `variance_epsilon` or `eps`."""

    offset: float = 0.0
    """Offset added to the weights: 1 if they are stored as differences from one."""

    in_float32: bool = False
    """True if weights multiply in float32, before rounding; else after it, in the inputs' dtype."""

    shared_gradient: frozenset[str] = frozenset()
    """Name endings of norms whose output is added to the residual stream: they receive the stream's
    own gradient, which their backward must not overwrite."""


@dataclass(frozen=True)
class LossRule:
    """Rule for an architecture's loss beyond plain cross-entropy of logits."""

    divisor: str | None = None
    """Configuration key of the divisor of logits."""

    softcap: str | None = None
    """Configuration key of the tanh bound of logits; its value may be null."""

    router: str | None = None
    """Function of the modeling module for a router's auxiliary loss."""

    output: str = "CausalLMOutputWithPast"
    """Class of the model's output in `transformers.modeling_outputs`."""


@dataclass(frozen=True)
class Rules:
    """Parts of an architecture that fused kernels can replace; an empty field is a missing part."""

    norms: NormRule | None = None
    """Rule for the architecture's RMS norms."""

    rotary: str | None = None
    """Function of the modeling module that rotates queries and keys:
    `(q, k, cos, sin, unsqueeze_dim=1)`."""

    gated_mlps: frozenset[str] = frozenset()
    """Classes of MLPs that compute `down_proj(act_fn(gate_proj(x)) * up_proj(x))`."""

    experts: frozenset[str] = frozenset()
    """Classes of experts with a method `_apply_gate(gate_and_up)`."""

    loss: LossRule = field(default_factory=LossRule)
    """Rule for the architecture's loss."""


ROTARY = "apply_rotary_pos_emb"
"""Usual name of the rotary embedding's function."""


def _plain(family: str, loss: LossRule | None = None) -> Rules:
    """Return the rules of Llama and architectures like it."""
    return Rules(
        norms=NormRule(frozenset({f"{family}RMSNorm"})),
        rotary=ROTARY,
        gated_mlps=frozenset({f"{family}MLP"}),
        loss=loss or LossRule(),
    )


def _gemma(family: str, loss: LossRule | None = None, shared: tuple[str, ...] = ()) -> Rules:
    """Return Gemma's rules: norm weights are differences from one, norms compute in float32."""
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
    """Return the rules of Mixtral and architectures like it."""
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
"""Rules by class name of the language model."""


def missing(rules: Rules, part: str) -> bool:
    """Return whether an architecture has nothing to replace for a part."""
    return {
        "rms_norm": rules.norms is None,
        "rope": rules.rotary is None,
        "gated_mlp": not rules.gated_mlps and not rules.experts,
    }.get(part, False)
