"""Speech: utterances within the requested lengths, with transcripts, synthesized once."""

from __future__ import annotations

import shutil
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from accel_bench_media.data.speech import Speech, SpeechOptions
from accel_bench_media.data.speech_batches_impl import frames_of, normalized
from accel_bench_media.data.speech_impl import (
    ALPHABET,
    SpeechDataset,
    docstring_sentences,
    load,
    spoken,
    transcript_of,
)
from media_works import built_run
from pydantic import ValidationError

from accel_bench import Run
from accel_bench.errors import ScenarioError
from accel_bench.testing import evidence_of, make_run

needs_speaker = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="the program espeak-ng is not installed"
)


def tones(folder: Path, **options: int) -> SpeechDataset:
    """Utterances of tones."""
    return load(make_run(folder), SpeechOptions(samples=40, **options))


def test_tones_have_the_lengths_that_are_asked_for(tmp_path: Path) -> None:
    found = tones(tmp_path, min_audio_len=2_000, max_audio_len=9_000)
    assert found.lengths.min() >= 2_000 and found.lengths.max() <= 9_000
    assert found.lengths.max() > 2 * found.lengths.min()
    assert {len(found.utterance(index)) for index in range(40)} == set(found.lengths.tolist())


def test_a_letter_is_heard_as_its_own_tone(tmp_path: Path) -> None:
    found = tones(tmp_path, min_audio_len=9_000, max_audio_len=9_000)
    heard: dict[str, list[float]] = {}
    for index, text in enumerate(found.transcripts):
        start = np.abs(np.fft.rfft(found.utterance(index)[:800], 16_000))
        heard.setdefault(text[0], []).append(float(start.argmax()))
    means = [np.mean(heard[letter]) for letter in ALPHABET if letter in heard]
    assert len(means) > 8
    assert all(first < second for first, second in pairwise(means))


def test_the_seed_decides_what_is_said(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, {"data": {"seed": seed}}) for seed in (0, 0, 1)]
    first, again, other = (load(run, SpeechOptions(samples=4)) for run in runs)
    assert first.transcripts == again.transcripts != other.transcripts


def test_a_shortest_length_above_the_longest_is_refused() -> None:
    with pytest.raises(ValidationError, match="min_audio_len 9 is larger than max_audio_len 8"):
        SpeechOptions(min_audio_len=9, max_audio_len=8)


def test_sentences_of_docstrings_are_words_alone() -> None:
    sentences = list(islice(docstring_sentences(), 100))
    assert len(set(sentences)) == 100
    assert all(set(transcript_of(one)) <= set(ALPHABET) for one in sentences)


@needs_speaker
def test_spoken_sentences_are_kept_once_and_chosen_by_length(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    options = SpeechOptions(source="espeak-ng", samples=6, min_audio_len=1)
    everything = load(run, options)
    # Between 40 and 250 milliseconds for a character.
    for text, length in zip(everything.transcripts, everything.lengths, strict=True):
        assert 640 < length / len(text) < 4_000
    middle = int(np.median(everything.lengths))
    short = load(run, options.model_copy(update={"max_audio_len": middle}))
    assert 0 < len(short) < len(everything)
    assert short.too_long == len(everything) - len(short)
    assert spoken(run, options).name == everything.fingerprint == short.fingerprint


@needs_speaker
def test_lengths_of_no_utterance_are_refused(tmp_path: Path) -> None:
    options = SpeechOptions(source="espeak-ng", samples=2, min_audio_len=1, max_audio_len=2)
    with pytest.raises(ScenarioError, match=r"no utterance has 1 to 2 audio samples, they have"):
        load(make_run(tmp_path), options)


@needs_speaker
def test_a_voice_that_there_is_not_is_named(tmp_path: Path) -> None:
    options = SpeechOptions(source="espeak-ng", samples=1, voice="klingonish")
    with pytest.raises(ScenarioError, match=r"data\.voice 'klingonish': espeak-ng does not speak"):
        load(make_run(tmp_path), options)


def test_without_the_program_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_bench_media.data.speech.shutil.which", lambda name: None)
    (reason,) = Speech(SpeechOptions(source="espeak-ng")).check_scenario()
    assert "Debian's package espeak-ng" in reason


@pytest.mark.parametrize("normalize", [True, False])
def test_an_utterance_is_normalized_where_it_is_asked_for(normalize: bool, tmp_path: Path) -> None:
    run = built_run(tmp_path, "wav2vec2", normalize_audio=normalize, seed=3)
    batch = next(run.batches)
    longest = int(batch.inputs["attention_mask"].sum(1).argmax())
    row = batch.inputs["input_values"][longest]
    assert (abs(float(row.std()) - 1) < 0.01) is normalize


def test_normalizing_is_that_of_transformers() -> None:
    from transformers import Wav2Vec2FeatureExtractor

    wave = np.random.default_rng(0).random(1_000, np.float32)
    theirs = Wav2Vec2FeatureExtractor()(wave, sampling_rate=16_000)["input_values"][0]
    assert np.allclose(normalized(wave), theirs, atol=1e-5)


def test_hidden_frames_are_drawn_anew_in_each_epoch_and_alike_however_a_step_is_divided(
    tmp_path: Path,
) -> None:
    def hidden(**train: int) -> list[tuple[bytes, bytes]]:
        """Utterances of two epochs, with the frames of each that are hidden."""
        work = "wav2vec2 without transcripts"
        data = {"samples": 8, "padding": "max_length"}
        batches = built_run(tmp_path, work, train=train, **data).batches
        return [
            (values.numpy().tobytes(), mask.numpy().tobytes())
            for batch in islice(batches, 4 * train["gradient_accumulation"])
            for values, mask in zip(
                batch.inputs["input_values"], batch.inputs["mask_time_indices"], strict=True
            )
        ]

    whole = hidden(micro_batch_size=4, gradient_accumulation=1)
    assert whole == hidden(micro_batch_size=2, gradient_accumulation=2)
    assert len({utterance for utterance, _ in whole}) == 8
    assert len({*whole}) > 12


def padding_of(run: Run) -> float:
    """Fraction of padding in the audio samples of eight steps."""
    counts = [batch.tokens for batch in islice(run.batches, 8)]
    return 1 - sum(one.real for one in counts) / sum(one.processed for one in counts)


def test_bucketing_pads_less_and_leaves_nothing_out(tmp_path: Path) -> None:
    mixed, bucketed = (
        built_run(tmp_path, "wav2vec2", bucketing=bucketing) for bucketing in (False, True)
    )
    assert padding_of(bucketed) < padding_of(mixed) / 2
    sizes = [
        sorted(
            length
            for batch in islice(built_run(tmp_path, "wav2vec2", bucketing=one).batches, 8)
            for length in batch.inputs["attention_mask"].sum(1).tolist()
        )
        for one in (False, True)
    ]
    assert sizes[0] == sizes[1]


def test_all_batches_have_one_length_where_that_is_asked_for(tmp_path: Path) -> None:
    run = built_run(tmp_path, "wav2vec2", padding="max_length")
    widths = {batch.inputs["input_values"].shape[1] for batch in islice(run.batches, 8)}
    assert widths == {evidence_of(run)["longest"]}


def test_utterances_of_fewer_frames_than_characters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"CTC needs .* raise data\.min_audio_len"):
        built_run(tmp_path, "wav2vec2", min_audio_len=1, max_audio_len=150)


def test_frames_are_those_of_the_model(tmp_path: Path) -> None:
    run = built_run(tmp_path, "wav2vec2")
    batch = next(run.batches)
    logits = run.model(batch.inputs["input_values"]).logits
    assert logits.shape[1] == frames_of(run.model.config, batch.inputs["input_values"].shape[1])


def test_a_hidden_frame_is_told_from_other_hidden_frames_of_its_utterance(tmp_path: Path) -> None:
    run = built_run(tmp_path, "wav2vec2 without transcripts")
    batch = next(run.batches)
    mask, negatives = (
        batch.inputs[name] for name in ("mask_time_indices", "sampled_negative_indices")
    )
    frames = mask.shape[1]
    assert negatives.shape == (*mask.shape, run.model.config.num_negatives)
    for row in range(len(mask)):
        for frame in torch.nonzero(mask[row]).flatten().tolist():
            others = negatives[row, frame] - row * frames
            assert frame not in others.tolist()
            assert mask[row, others].all()
    real = [frames_of(run.model.config, int(one)) for one in batch.inputs["attention_mask"].sum(1)]
    assert all(not mask[row, end:].any() for row, end in enumerate(real))


def test_masks_of_utterances_too_short_to_hide_two_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"pre-training hides two frames or more"):
        built_run(tmp_path, "wav2vec2 without transcripts", min_audio_len=250, max_audio_len=300)
