"""The plugin `padding-free`: the sequences of a micro-batch in one row, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from accel_bench import (
    Batch,
    Experiment,
    Machine,
    Options,
    Plugin,
    Run,
    architecture_of,
    hookimpl,
)

if TYPE_CHECKING:
    from accel_bench_padding_free.batches import Attention
    from accel_bench_padding_free.impl.attention import SeparatedAttention

WITHOUT_BLOCKS = frozenset({"OPTForCausalLM"})
"""Architectures whose mask in transformers does not separate the sequences of a row. They need an
attention function that computes each sequence alone."""


class PaddingFreeOptions(Options):
    """Options of `padding-free`: distribution of samples over micro-batches, and attention."""

    sampler: Literal["same", "multipack"] = "same"
    """Distribution of samples. `same`: each micro-batch has the samples that it has in the
    baseline; `multipack`: each optimizer step has the baseline's samples, spread over ranks and
    micro-batches to balance the number of tokens."""

    attention: Literal["auto", "varlen", "mask"] = "auto"
    """Attention that separates sequences. `varlen`: compute each sequence alone; `mask`: compute
    all pairs of tokens, and mask those of different sequences; `auto`: `varlen` if it is
    supported."""


class PaddingFree(Plugin[PaddingFreeOptions]):
    """Flattened batches of shape (1, tokens), with positions that start again."""

    Options = PaddingFreeOptions
    devices = frozenset({"cpu", "cuda"})
    modes = frozenset({"train"})
    tasks = frozenset({"causal-lm"})
    restricted_model_archs: ClassVar[frozenset[str] | None] = frozenset(
        {
            "ApertusForCausalLM",
            "ArceeForCausalLM",
            "Cohere2ForCausalLM",
            "CohereForCausalLM",
            "Exaone4ForCausalLM",
            "GPT2LMHeadModel",
            "GPTBigCodeForCausalLM",
            "GPTNeoXForCausalLM",
            "Gemma2ForCausalLM",
            "Gemma3ForCausalLM",
            "GemmaForCausalLM",
            "Glm4ForCausalLM",
            "GlmForCausalLM",
            "GraniteForCausalLM",
            "GraniteMoeForCausalLM",
            "GraniteMoeSharedForCausalLM",
            "LlamaForCausalLM",
            "MinistralForCausalLM",
            "MistralForCausalLM",
            "MixtralForCausalLM",
            "OPTForCausalLM",
            "Olmo2ForCausalLM",
            "Olmo3ForCausalLM",
            "OlmoForCausalLM",
            "Phi3ForCausalLM",
            "PhiForCausalLM",
            "Qwen2ForCausalLM",
            "Qwen3ForCausalLM",
            "Qwen3MoeForCausalLM",
            "SmolLM3ForCausalLM",
            "Starcoder2ForCausalLM",
        }
    )

    # Over 31 steps of a small llama, losses differed from padded ones by up to 2e-7 in float32 and
    # 1e-4 in bfloat16, `multipack` and accumulation included. This leaves a factor of twenty.
    loss_tolerance: ClassVar[float | None] = 2e-3

    def __init__(self, options: PaddingFreeOptions, name: str = "") -> None:
        super().__init__(options, name)
        self._attention: Attention | None = None

    def claims(self) -> frozenset[str]:
        """Return the hook that only this plugin may implement in a run, `build_batches`."""
        return frozenset({"build_batches"})

    @hookimpl
    def check_scenario(self, experiment: Experiment, machine: Machine) -> Iterator[str]:
        """Yield reasons why the options do not suit the model's attention implementation."""
        asked, wanted = experiment.scenario.model.attention, self.options.attention
        if wanted == "varlen" and asked in ("eager", "flex_attention"):
            yield f"attention: varlen needs model.attention sdpa or flash_attention_2, not {asked}"
        if wanted == "mask" and asked == "flash_attention_2":
            yield "attention: mask needs model.attention sdpa, eager or flex_attention"

        by_mask = wanted == "mask" or asked in ("eager", "flex_attention")
        if by_mask and architecture_of(experiment.scenario.model) in WITHOUT_BLOCKS:
            yield (
                "transformers makes this model's mask without looking at positions; use "
                "model.attention sdpa, and attention: varlen"
            )

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Replace the attention function, and verify that it keeps the sequences of a row apart."""
        from accel_bench_padding_free.impl import attention, isolation

        self._attention, because = attention.choose_attention(run, self.options.attention)
        replaced: SeparatedAttention | None = None
        if self._attention in ("flash", "varlen"):
            longest = run.scenario.data.sequence_length
            longest = max(longest, *isolation.PROBE_LENGTHS)
            replaced = attention.SeparatedAttention(run.scenario.model.attention, longest)
            run.on_close(replaced.undo)
        difference = isolation.prove_isolation(run, self._attention)
        run.on_evidence(
            lambda: {
                "attention": self._attention,
                "attention_because": because,
                "attention_calls": dict(replaced.calls) if replaced else {},
                "isolation_difference": difference,
            }
        )

    @hookimpl
    def build_batches(self, run: Run) -> Iterator[Batch]:
        """Yield micro-batches of one row each; a step has the samples of the baseline's step."""
        from accel_bench_padding_free.batches import FlatBatches

        assert self._attention is not None
        batches = FlatBatches(run, self.options.sampler, self._attention)
        run.on_evidence(batches.evidence)
        return iter(batches)
