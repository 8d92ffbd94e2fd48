"""A micro-batch of the longest utterances, of zeros: what is simulated for estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from accel_bench import Batch, Run, TokenCounts
from accel_bench_media.data.speech import SpeechOptions
from accel_bench_media.data.speech_batches_impl import FRAMES_IN_POSITION, HOP, frames_of
from accel_bench_media.data.speech_impl import TONE_SAMPLES


def simulated_batch(run: Run, options: SpeechOptions, utterances: int) -> Batch:
    """Return utterances of `max_audio_len` with what the run's task has beside them."""
    config, dtype = run.unwrapped_model.config, getattr(torch, run.scenario.model.dtype)
    samples, written = options.max_audio_len, longest_text(options)
    heard = samples
    if run.scenario.task.use == "speech-seq2seq":
        shapes = _features(config, utterances, written + 1)
        heard = HOP * FRAMES_IN_POSITION * config.max_source_positions
    else:
        shapes = {name: (utterances, samples) for name in ("input_values", "attention_mask")}
    if run.scenario.task.use == "ctc":
        shapes["labels"] = (utterances, written)
    tensors = {name: _zeros(name, shape, dtype) for name, shape in shapes.items()}
    if run.scenario.task.use == "speech-pretraining":
        tensors |= _hidden(config, utterances, samples)
    supervised = utterances * written
    counts = TokenCounts(utterances * heard, utterances * samples, supervised)
    return Batch(tensors, utterances, counts, supervised)


def longest_text(options: SpeechOptions) -> int:
    """Return the characters that are said in the longest utterance, at most."""
    shortest, longest = TONE_SAMPLES
    return max(1, options.max_audio_len // (longest if options.source == "tones" else shortest))


def _features(config: Any, utterances: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of log-mel features and of what is said."""
    frames = FRAMES_IN_POSITION * config.max_source_positions
    text = (utterances, min(tokens, config.max_target_positions))
    features = (utterances, config.num_mel_bins, frames)
    return {"input_features": features, "decoder_input_ids": text, "labels": text}


def _hidden(config: Any, utterances: int, samples: int) -> Mapping[str, torch.Tensor]:
    """Return which frames are hidden, and the others that each is told from."""
    frames = (utterances, int(frames_of(config, samples)))
    return {
        "mask_time_indices": torch.zeros(frames, dtype=torch.bool),
        "sampled_negative_indices": torch.zeros((*frames, config.num_negatives), dtype=torch.long),
    }


def _zeros(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = name in ("input_values", "input_features")
    return torch.zeros(shape, dtype=dtype if values else torch.long)
