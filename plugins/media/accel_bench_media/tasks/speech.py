"""What tasks of speech share: how much was said, and parts of a model that chance leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_bench import Batch, Held
from accel_bench.errors import ScenarioError

AUDIO_SAMPLES = "audio_samples"
"""What tasks of speech count: values of the waveform, 16,000 a second, as fairseq2 counts the
elements of its batches of audio."""

DROPPED_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Keys of configurations for the probability that a layer is left out of a step."""


def held_waveforms(batch: Batch, supervised: Any) -> Held:
    """Return the audio samples of a batch of waveforms."""
    values, mask = batch.inputs["input_values"], batch.inputs.get("attention_mask")
    size = int(values.numel())
    real = size if mask is None else int(mask.sum())
    count = int(supervised)
    return Held((size, size), (real, real), (count, count))


def augmentation(model: Any) -> str:
    """Return `SpecAugment` for a model that hides times or frequencies at random while it trains;
    else an empty text. See Park et al. 2019, arXiv:1904.08779."""
    config = model.config
    probabilities = (getattr(config, f"mask_{axis}_prob", 0) for axis in ("time", "feature"))
    asked = getattr(config, "apply_spec_augment", True) and any(probabilities)
    return "SpecAugment" if asked else ""


def dropped_layers(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield that layers are left out by chance: they get no gradient, so that nothing is proven,
    and what a step costs is chance too."""
    for key in DROPPED_LAYERS:
        if (value := config.get(key)) and isinstance(value, int | float):
            yield (
                f"the model leaves each layer out of a step with probability {value:g}, and so of "
                f"its gradient: set model.overrides.{key}: 0.0"
            )


def refuse_dropped_layers(model: Any) -> None:
    """Raise ScenarioError for a model that leaves layers out by chance."""
    for problem in dropped_layers(model.config.to_dict()):
        raise ScenarioError(problem)
