"""What tasks of speech share: how much was said, and parts of a model that chance leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from accel_bench import Batch, Experiment, Held, Options, Run, Task, hookimpl, model_config
from accel_bench.errors import ScenarioError

OptionsT = TypeVar("OptionsT", bound=Options)

DROPPED_LAYERS = ("layerdrop", "encoder_layerdrop", "decoder_layerdrop")
"""Keys of configurations for the probability that a layer is left out of a step."""


class SpeechTask(Task[OptionsT]):
    """Base of tasks of speech; layers that are left out by chance are refused.

    What is counted are audio samples: values of the waveform, 16,000 a second, as fairseq2 counts
    the elements of its batches of audio.
    """

    counts = "audio_samples"
    families: ClassVar[frozenset[str]] = frozenset({"audio"})

    def random_operations(self, model: Any) -> str:
        """Return `SpecAugment` for a model that hides times or frequencies at random while it
        trains; else an empty text. See Park et al. 2019, arXiv:1904.08779."""
        config = model.config
        probabilities = (getattr(config, f"mask_{axis}_prob", 0) for axis in ("time", "feature"))
        asked = getattr(config, "apply_spec_augment", True) and any(probabilities)
        return "SpecAugment" if asked else ""

    @hookimpl
    def check_scenario(self, experiment: Experiment) -> Iterator[str]:
        """Refuse layers that are left out by chance."""
        yield from dropped_layers(model_config(experiment.scenario.model) or {})

    @hookimpl
    def accelerate_model(self, run: Run) -> None:
        """Refuse what the plan could not know. Raises ScenarioError."""
        for problem in dropped_layers(run.model.config.to_dict()):
            raise ScenarioError(problem)


def held_waveforms(batch: Batch, supervised: Any) -> Held:
    """Return the audio samples of a batch of waveforms."""
    values, mask = batch.inputs["input_values"], batch.inputs.get("attention_mask")
    size = int(values.numel())
    real = size if mask is None else int(mask.sum())
    count = int(supervised)
    return Held((size, size), (real, real), (count, count))


def dropped_layers(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield that layers are left out by chance: they get no gradient, so that nothing is proven,
    and what a step costs is chance too."""
    for key in DROPPED_LAYERS:
        if (value := config.get(key)) and isinstance(value, int | float):
            yield (
                f"the model leaves each layer out of a step with probability {value:g}, and so of "
                f"its gradient: set model.overrides.{key}: 0.0"
            )
