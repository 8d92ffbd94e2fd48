"""Batches of utterances: waveforms with transcripts, waveforms with masks, or log-mel features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from accel_bench import Batch, Run, TokenCounts
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data.batch_plan import BatchPlan, Integers, sample_order
from accel_bench.modeling.data.sample_batches import Collate, Step, batch_of
from accel_bench.modeling.data.token_batches import IGNORED_LABEL
from accel_bench_media.data.speech import SpeechOptions
from accel_bench_media.data.speech_impl import SAMPLING_RATE, TONE_SAMPLES, SpeechDataset

Waveform: TypeAlias = npt.NDArray[np.float32]
Mask: TypeAlias = npt.NDArray[np.bool_]

BUCKET_STEPS = 16
"""Number of optimizer steps whose utterances are sorted by length in one go."""

MASK_STREAM = 2
"""Further element of the seed for masks, so that drawing them does not change the order."""

SMALLEST_VARIANCE = 1e-7
"""Term added to an utterance's variance, as in transformers' feature extractors."""

HOP = 160
"""Audio samples between two frames of log-mel features."""

FRAMES_IN_POSITION = 2
"""Feature frames per position of a whisper encoder."""


@dataclass(frozen=True)
class SpeechCollator:
    """Collator of utterances for each task, with the batch layout and the model's configuration."""

    dataset: SpeechDataset
    options: SpeechOptions
    plan: BatchPlan

    config: Any
    """Configuration of the model."""

    dtype: torch.dtype
    """Dtype of the model's weights."""

    def waveforms(self, samples: Integers) -> list[Waveform]:
        """Return the utterances with these indices, normalized if `normalize_audio` is set."""
        waves = [self.dataset.utterance(index) for index in samples]
        return list(map(normalized, waves)) if self.options.normalize_audio else waves

    def padded(self, samples: Integers) -> tuple[dict[str, torch.Tensor], TokenCounts]:
        """Return padded `input_values`, an `attention_mask` if lengths differ, and token counts.

        `samples` are the utterances' indices. The counts lack supervised elements.
        """
        lengths = self.dataset.lengths[samples]
        everything = self.dataset.lengths
        longest = everything.max() if self.options.padding == "max_length" else lengths.max()
        values = np.zeros((len(samples), int(longest)), dtype=np.float32)
        for row, waveform in zip(values, self.waveforms(samples), strict=True):
            row[: len(waveform)] = waveform
        tensors = {"input_values": torch.from_numpy(values).to(self.dtype)}
        if everything.min() < everything.max():
            real = np.arange(int(longest)) < lengths[:, None]
            tensors["attention_mask"] = torch.from_numpy(real.astype(np.int64))
        return tensors, TokenCounts(values.size, int(lengths.sum()), 0)

    def transcribed(self, samples: Integers, step: Step) -> Batch:
        """Return a batch of waveforms with the supervised tokens of their transcripts.

        `samples` are the utterances' indices, and `step` is the optimizer step that contains them.
        """
        tensors, counts = self.padded(samples)
        texts = [self.dataset.tokens(index) for index in samples]
        tensors["labels"] = padded_tokens(texts, IGNORED_LABEL)
        in_step = sum(len(self.dataset.transcripts[index]) for index in step.samples)
        return self.batch(tensors, counts, sum(map(len, texts)), in_step)

    def masked(self, samples: Integers, step: Step) -> Batch:
        """Return a batch of waveforms with masked frames, and negatives for each masked frame.

        `samples` are the utterances' indices in the optimizer step `step`. A mask depends only on
        the utterance's place in the endless order of samples. So each epoch has new masks, and
        every rank knows the masks of the whole step.
        """
        tensors, counts = self.padded(samples)
        frames = int(frames_of(self.config, tensors["input_values"].shape[1]))
        places = step.places(samples)
        masks = [self._mask(*pair, frames) for pair in zip(samples, places, strict=True)]
        of_step = zip(step.samples, step.places(step.samples), strict=True)
        in_step = sum(int(self._mask(*pair).sum()) for pair in of_step)
        negatives = [
            self._negatives(place, mask) + row * frames
            for row, (place, mask) in enumerate(zip(places, masks, strict=True))
        ]
        tensors["mask_time_indices"] = torch.from_numpy(np.stack(masks))
        tensors["sampled_negative_indices"] = torch.from_numpy(np.stack(negatives))
        return self.batch(tensors, counts, int(np.sum(masks)), in_step)

    def log_mel(self, extractor: Any) -> Collate:
        """Return the function that makes batches of log-mel features with tokens of transcripts.

        `extractor` is whisper's feature extractor.
        """

        def collate(samples: Integers, step: Step) -> Batch:
            features = extractor(
                self.waveforms(samples), sampling_rate=SAMPLING_RATE, return_tensors="pt"
            )
            end = self.config.eos_token_id
            texts = [[*self.dataset.tokens(index), end] for index in samples]
            begun = [[self.config.decoder_start_token_id, *text[:-1]] for text in texts]
            tensors = {
                "input_features": features["input_features"].to(self.dtype),
                "decoder_input_ids": padded_tokens(begun, end),
                "labels": padded_tokens(texts, IGNORED_LABEL),
            }
            real = int(self.dataset.lengths[samples].sum())
            counts = TokenCounts(extractor.n_samples * len(samples), real, 0)
            in_step = sum(len(self.dataset.transcripts[index]) + 1 for index in step.samples)
            return self.batch(tensors, counts, sum(map(len, texts)), in_step)

        return collate

    def batch(
        self, tensors: dict[str, torch.Tensor], counts: TokenCounts, supervised: int, in_step: int
    ) -> Batch:
        """Return `tensors` as a micro-batch, with its counts of elements.

        `counts` has the processed and real numbers. `supervised` is the number of supervised
        elements in the micro-batch, and `in_step` their number in the whole optimizer step.
        """
        counts = TokenCounts(counts.processed, counts.real, supervised)
        return batch_of(tensors, self.plan, counts, in_step)

    def _mask(self, index: int, place: int, frames: int | None = None) -> Mask:
        """Return the mask of the frames of utterance `index`, True where masked.

        `place` is its place in the endless order of samples. The mask is padded to `frames`. The
        number of spans follows from `mask_time_prob`; spans may overlap.
        """
        real = int(frames_of(self.config, int(self.dataset.lengths[index])))
        span = self.config.mask_time_length
        spans = max(
            1, self.config.mask_time_min_masks, round(self.config.mask_time_prob * real / span)
        )
        places = max(1, real - span + 1)
        generator = np.random.default_rng((self.plan.seed, MASK_STREAM, int(place)))
        starts = generator.choice(places, min(spans, places), replace=False)
        mask = np.zeros(frames or real, dtype=np.bool_)
        for start in starts:
            mask[start : min(real, start + span)] = True
        return mask

    def _negatives(self, place: int, mask: Mask) -> Integers:
        """Return the indices of random other masked frames for each masked frame.

        `place` is the utterance's place in the endless order of samples. The shape is (frames,
        `num_negatives`). Rows of unmasked frames are 0.
        """
        (hidden,) = np.nonzero(mask)
        count = self.config.num_negatives
        generator = np.random.default_rng((self.plan.seed, MASK_STREAM, int(place), 1))
        others = generator.integers(0, max(1, len(hidden) - 1), (len(hidden), count))
        others += others >= np.arange(len(hidden))[:, None]
        chosen = np.zeros((len(mask), count), dtype=np.int64)
        chosen[hidden] = hidden[np.minimum(others, len(hidden) - 1)]
        return chosen


def collate_of(run: Run, options: SpeechOptions, plan: BatchPlan) -> Collate:
    """Return the function that makes batches for the run's task.

    Raises ScenarioError if the data do not fit the model.
    """
    config, dtype = run.unwrapped_model.config, getattr(torch, run.scenario.model.dtype)
    collator = SpeechCollator(run.dataset, options, plan, config, dtype)
    if run.scenario.task.use == "ctc":
        check_frames(run.dataset, config)
        return collator.transcribed
    if run.scenario.task.use == "speech-pretraining":
        check_masks(run.dataset, config)
        return collator.masked
    return collator.log_mel(feature_extractor(run.dataset, config))


def bucketed(lengths: Integers, plan: BatchPlan, utterances: Integers, epoch: int) -> Integers:
    """Return an epoch's order of `utterances`, by which a step's utterances have similar lengths.

    `lengths` has the length of each utterance of the dataset in audio samples. Utterances of a few
    steps are sorted together. Then the steps are shuffled.
    """
    size = plan.global_batch_size
    samples = utterances[sample_order(len(utterances), plan.seed, epoch)]
    steps: list[Integers] = []
    for first in range(0, len(samples), size * BUCKET_STEPS):
        some = samples[first : first + size * BUCKET_STEPS]
        by_length = some[np.argsort(lengths[some], kind="stable")]
        whole = len(by_length) // size * size
        steps += np.split(by_length[:whole], max(1, whole // size))
    shuffled = sample_order(len(steps), plan.seed, epoch)
    return np.concatenate([steps[number] for number in shuffled])


def normalized(waveform: Waveform) -> Waveform:
    """Return a waveform normalized to mean 0 and variance 1."""
    scale = np.sqrt(waveform.var() + np.float32(SMALLEST_VARIANCE))
    scaled: Waveform = (waveform - waveform.mean()) / scale
    return scaled


def padded_tokens(rows: list[list[int]], padding: int) -> torch.Tensor:
    """Return token ids of several lengths as one padded tensor, shape (rows, longest)."""
    padded = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return torch.from_numpy(padded)


def frames_of(config: Any, samples: Any) -> Any:
    """Return the number of frames that a wav2vec2 encoder makes of audio samples.

    `samples` is a number of audio samples, or an array of numbers.
    """
    for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
        samples = (samples - kernel) // stride + 1
    return samples


def check_frames(dataset: SpeechDataset, config: Any) -> None:
    """Raise ScenarioError if an utterance has fewer frames than CTC needs for its characters.

    `config` is the model's configuration, which determines the number of frames.
    """
    frames = frames_of(config, dataset.lengths)
    for text, length, count in zip(dataset.transcripts, dataset.lengths, frames, strict=True):
        needed = len(text) + sum(first == other for first, other in pairwise(text))
        if count < needed:
            raise ScenarioError(
                f"an utterance of {length:,} audio samples has {max(0, count)} frames, and CTC "
                f"needs {needed} for its {len(text)} characters: raise data.min_audio_len"
            )


def check_masks(dataset: SpeechDataset, config: Any) -> None:
    """Raise ScenarioError if the shortest utterance, or a masked span, has less than two frames."""
    shortest = int(frames_of(config, int(dataset.lengths.min())))
    if min(shortest, config.mask_time_length) < 2:
        raise ScenarioError(
            f"pre-training hides two frames or more, and an utterance of "
            f"{dataset.lengths.min():,} audio samples has {max(0, shortest)}, of which "
            f"{config.mask_time_length} are hidden: raise data.min_audio_len, or "
            "model.overrides.mask_time_length"
        )


def feature_extractor(dataset: SpeechDataset, config: Any) -> Any:
    """Return whisper's feature extractor for the model of `config`.

    Raises ScenarioError if an utterance or a transcript is too long for the model.
    """
    from transformers import WhisperFeatureExtractor

    per_second = SAMPLING_RATE // (HOP * FRAMES_IN_POSITION)
    seconds, rest = divmod(config.max_source_positions, per_second)
    if rest or not seconds:
        raise ScenarioError(
            f"the model takes {config.max_source_positions} positions of audio: set "
            f"model.overrides.max_source_positions to a multiple of {per_second}, a second"
        )
    if (longest := int(dataset.lengths.max())) > seconds * SAMPLING_RATE:
        raise ScenarioError(
            f"an utterance has {longest:,} audio samples, and the model takes "
            f"{seconds * SAMPLING_RATE:,}: lower data.max_audio_len"
        )
    text = max(map(len, dataset.transcripts)) + 1
    if text > config.max_target_positions:
        raise ScenarioError(
            f"a transcript has {text} tokens, and the model takes {config.max_target_positions}: "
            "lower data.max_audio_len"
        )
    return WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds)


def simulated_batch(run: Run, options: SpeechOptions, utterances: int) -> Batch:
    """Return a micro-batch of silent utterances of `max_audio_len`, for the run's task.

    `utterances` is their number.
    """
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
    """Return the maximum number of characters in an utterance of `max_audio_len`."""
    shortest, longest = TONE_SAMPLES
    return max(1, options.max_audio_len // (longest if options.source == "tones" else shortest))


def _features(config: Any, utterances: int, tokens: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of whisper's inputs by name, for a simulated batch of `utterances`.

    `tokens` is the length of each transcript.
    """
    frames = FRAMES_IN_POSITION * config.max_source_positions
    text = (utterances, min(tokens, config.max_target_positions))
    features = (utterances, config.num_mel_bins, frames)
    return {"input_features": features, "decoder_input_ids": text, "labels": text}


def _hidden(config: Any, utterances: int, samples: int) -> Mapping[str, torch.Tensor]:
    """Return a mask without masked frames, and negatives of 0, for a simulated batch.

    `samples` is the number of audio samples of each utterance.
    """
    frames = (utterances, int(frames_of(config, samples)))
    return {
        "mask_time_indices": torch.zeros(frames, dtype=torch.bool),
        "sampled_negative_indices": torch.zeros((*frames, config.num_negatives), dtype=torch.long),
    }


def _zeros(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = name in ("input_values", "input_features")
    return torch.zeros(shape, dtype=dtype if values else torch.long)
