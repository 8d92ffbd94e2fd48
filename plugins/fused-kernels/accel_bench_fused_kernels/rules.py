"""Name the parts of each architecture: the one table to extend for another architecture.

Light: names and numbers only. A rule says which classes of the modeling module compute what, and
how the model makes logits from what the decoder returns. Everything that a rule does not mention
stays as it is, such as Granite's multipliers of embeddings, attention and residuals.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Norms:
    """RMS norms of an architecture."""

    classes: frozenset[str]
    """Names of the classes, which hold `weight` and `variance_epsilon` or `eps`."""

    offset: float = 0.0
    """Offset that is added to the weights: 1 where they are stored as differences from one."""

    in_float32: bool = False
    """True if weights multiply in float32, before rounding; else after it, in the stream's dtype.
    """

    shared_gradient: frozenset[str] = frozenset()
    """Last parts of the names of norms whose output is added to the residual stream: the gradient
    that reaches them is the stream's own, so their backward must not write into it."""


@dataclass(frozen=True)
class Loss:
    """Loss of an architecture, where that is not plain cross-entropy of logits."""

    divisor: str | None = None
    """Key of the configuration by which logits are divided."""

    softcap: str | None = None
    """Key of the configuration with the bound that a tanh keeps logits in; its value may be null.
    """

    router: str | None = None
    """Function of the modeling module that makes the auxiliary loss of a router."""

    output: str = "CausalLMOutputWithPast"
    """Class of `transformers.modeling_outputs` that the model returns."""


@dataclass(frozen=True)
class Rules:
    """Parts of one architecture. A field that is None or empty: it has no such part."""

    norms: Norms | None = None
    """Its RMS norms."""

    rotary: str | None = None
    """Function of the modeling module that rotates queries and keys:
    `(q, k, cos, sin, unsqueeze_dim=1)`."""

    gated_mlps: frozenset[str] = frozenset()
    """Classes of MLPs that compute `down_proj(act_fn(gate_proj(x)) * up_proj(x))`."""

    experts: frozenset[str] = frozenset()
    """Classes of experts that gate in `_apply_gate(gate_and_up)`."""

    loss: Loss = field(default_factory=Loss)
    """Its loss."""


ROTARY = "apply_rotary_pos_emb"
"""The usual name of the function that rotates."""


def _plain(family: str, loss: Loss | None = None) -> Rules:
    """Return the rules of Llama and architectures like it."""
    return Rules(
        norms=Norms(frozenset({f"{family}RMSNorm"})),
        rotary=ROTARY,
        gated_mlps=frozenset({f"{family}MLP"}),
        loss=loss or Loss(),
    )


def _gemma(family: str, loss: Loss | None = None, shared: tuple[str, ...] = ()) -> Rules:
    """Return Gemma's rules: norms' weights are differences from one, norms are float32."""
    norms = Norms(
        frozenset({f"{family}RMSNorm"}),
        offset=1.0,
        in_float32=True,
        shared_gradient=frozenset(shared),
    )
    return Rules(
        norms=norms,
        rotary=ROTARY,
        gated_mlps=frozenset({f"{family}MLP"}),
        loss=loss or Loss(),
    )


def _experts(family: str, divisor: str | None = None) -> Rules:
    """Return the rules of Mixtral and architectures like it."""
    loss = Loss(
        divisor=divisor, router="load_balancing_loss_func", output="MoeCausalLMOutputWithPast"
    )
    return Rules(
        norms=Norms(frozenset({f"{family}RMSNorm"})),
        rotary=ROTARY,
        experts=frozenset({f"{family}Experts"}),
        loss=loss,
    )


_CAPPED = Loss(softcap="final_logit_softcapping")
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")

RULES: dict[str, Rules] = {
    "GPTBigCodeForCausalLM": Rules(loss=Loss(output="CausalLMOutputWithCrossAttentions")),
    "Gemma2ForCausalLM": _gemma("Gemma2", _CAPPED, _AFTER),
    "Gemma3ForCausalLM": _gemma("Gemma3", _CAPPED, _AFTER),
    "GemmaForCausalLM": _gemma("Gemma"),
    "GraniteForCausalLM": _plain("Granite", Loss(divisor="logits_scaling")),
    "GraniteMoeForCausalLM": _experts("GraniteMoe", "logits_scaling"),
    "LlamaForCausalLM": _plain("Llama"),
    "MistralForCausalLM": _plain("Mistral"),
    "MixtralForCausalLM": _experts("Mixtral"),
    "Qwen2ForCausalLM": _plain("Qwen2"),
    "Qwen3ForCausalLM": _plain("Qwen3"),
    "T5ForConditionalGeneration": Rules(norms=Norms(frozenset({"T5LayerNorm"}))),
}
"""Rules by architecture, the class of the language model."""


def missing(rules: Rules, part: str) -> bool:
    """Return whether an architecture has nothing that a part could replace."""
    return {
        "rms_norm": rules.norms is None,
        "rope": rules.rotary is None,
        "gated_mlp": not rules.gated_mlps and not rules.experts,
    }.get(part, False)
