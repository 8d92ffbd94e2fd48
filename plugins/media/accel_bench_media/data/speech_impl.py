"""Datasets of utterances, of tones or spoken by espeak-ng, filtered by length."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import math
import re
import subprocess
import wave
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

from accel_bench import Run, available_cores
from accel_bench.errors import ScenarioError
from accel_bench.modeling.data import text_sources
from accel_bench.modeling.data.batch_plan import Integers
from accel_bench_media.data.speech import SPEAKER, SpeechOptions, speaker_version

Audio: TypeAlias = npt.NDArray[np.int16]

SAMPLING_RATE = 16_000
"""Number of audio samples per second."""

FULL_SCALE = 32_768
"""Divisor that scales 16-bit audio samples to the range -1 to 1."""

ALPHABET = "|ETAONIHSRDLUMWCFGYPBVK'XJQZ"
"""Characters of a transcript, `|` between words, in the order of wav2vec2's vocabulary."""

FIRST_CHARACTER = 4
"""Token id of the first character, after padding (the blank of CTC), beginning, end and unknown."""

VOCABULARY = FIRST_CHARACTER + len(ALPHABET)

TONE_SAMPLES = (800, 1_600)
"""Minimum and maximum length of a letter's tone, in audio samples."""

LOWEST_TONE, NEXT_TONE = 300.0, 1.08
"""Frequency of the first character in Hz, and the ratio of frequencies of successive characters."""

STDLIB_BYTES = 1_000_000
"""Maximum bytes of the standard library's source in which docstrings are searched."""

SENTENCE = re.compile(r"[A-Z][A-Za-z', ]{15,118}\.")
"""Pattern of a sentence to speak, which consists of words alone."""

SPEAK_SECONDS = 60
"""Timeout in seconds of synthesizing a sentence."""

CACHE_FORM = 1
"""Version of the cached files, part of the cache key."""


@dataclass(frozen=True)
class SpeechDataset:
    """Utterances as slices of one flat array, which may be memory-mapped."""

    audio: Audio
    """Audio samples of all generated utterances, shape (audio samples,)."""

    starts: Integers
    """Start index in `audio` of each utterance, shape (utterances,)."""

    lengths: Integers
    """Length of each utterance in audio samples, shape (utterances,)."""

    transcripts: tuple[str, ...]
    """Transcript of each utterance, in characters of `ALPHABET`."""

    fingerprint: str
    """Hexadecimal digest of the content."""

    too_short: int = 0
    """Number of dropped utterances shorter than `min_audio_len`."""

    too_long: int = 0
    """Number of dropped utterances longer than `max_audio_len`."""

    vocab_size: int = VOCABULARY
    """Number of token ids that transcripts can have."""

    def __len__(self) -> int:
        return len(self.starts)

    def utterance(self, index: int) -> npt.NDArray[np.float32]:
        """Return utterance `index` with values from -1 to 1, of shape (its audio samples,)."""
        start = self.starts[index]
        audio = self.audio[start : start + self.lengths[index]].astype(np.float32)
        return audio / np.float32(FULL_SCALE)

    def tokens(self, index: int) -> list[int]:
        """Return the token ids of one transcript."""
        return [FIRST_CHARACTER + ALPHABET.index(letter) for letter in self.transcripts[index]]

    def evidence(self) -> dict[str, Any]:
        """Return JSON evidence of the dataset: utterances, seconds, lengths and characters."""
        return {
            "samples": len(self),
            "audio_seconds": float(self.lengths.sum() / SAMPLING_RATE),
            "shortest": int(self.lengths.min()),
            "mean_length": float(self.lengths.mean()),
            "longest": int(self.lengths.max()),
            "too_short": self.too_short,
            "too_long": self.too_long,
            "characters": sum(map(len, self.transcripts)),
            "fingerprint": self.fingerprint,
        }


def load(run: Run, options: SpeechOptions) -> SpeechDataset:
    """Return the dataset of all utterances within the length limits.

    Raises ScenarioError if no utterance is left.
    """
    if options.source == "tones":
        audio, ends, transcripts = make_tones(options, run.scenario.data.seed)
        fingerprint = hashlib.sha256(audio.tobytes()).hexdigest()[:24]
    else:
        folder = spoken(run, options)
        audio = np.load(folder / "audio.npy", mmap_mode="r", allow_pickle=False)
        ends = np.load(folder / "ends.npy", allow_pickle=False)
        transcripts = json.loads((folder / "transcripts.json").read_text(encoding="utf8"))
        fingerprint = folder.name
    return _within_lengths(audio, ends, transcripts, fingerprint, options)


def _within_lengths(
    audio: Audio, ends: Integers, transcripts: list[str], fingerprint: str, options: SpeechOptions
) -> SpeechDataset:
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    lengths = ends - starts
    short, long = lengths < options.min_audio_len, lengths > options.max_audio_len
    (kept,) = np.nonzero(~(short | long))
    if not len(kept):
        raise ScenarioError(
            f"data: no utterance has {options.min_audio_len:,} to {options.max_audio_len:,} audio "
            f"samples, they have {lengths.min():,} to {lengths.max():,}: change "
            "data.min_audio_len and data.max_audio_len"
        )
    return SpeechDataset(
        audio=audio,
        starts=starts[kept],
        lengths=lengths[kept],
        transcripts=tuple(transcripts[index] for index in kept),
        fingerprint=fingerprint,
        too_short=int(short.sum()),
        too_long=int(long.sum()),
    )


def make_tones(options: SpeechOptions, seed: int) -> tuple[Audio, Integers, list[str]]:
    """Return audio samples of all utterances, each utterance's end index, and its transcript.

    Lengths are uniformly distributed between the limits, and depend only on seed and options.
    """
    generator = np.random.default_rng(seed)
    pieces, transcripts = [], []
    for _ in range(options.samples):
        length = int(generator.integers(options.min_audio_len, options.max_audio_len + 1))
        text = _random_words(generator, max(1, length // TONE_SAMPLES[1]))
        pieces.append(_tones(text, length, generator))
        transcripts.append(text)
    ends: Integers = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    return np.concatenate(pieces), ends, transcripts


def _random_words(generator: np.random.Generator, characters: int) -> str:
    """Return words of two to seven random letters, joined by bars, `characters` long in total."""
    letters = list(ALPHABET[1:])
    text = ""
    while len(text) < characters:
        word = "".join(generator.choice(letters, generator.integers(2, 8)))
        text += f"|{word}" if text else word
    return text[:characters].rstrip("|") or letters[0]


def _tones(text: str, length: int, generator: np.random.Generator) -> Audio:
    """Return a tone for each character of a text, then silence up to `length` audio samples."""
    sound = generator.normal(0, 0.005, length)
    place = 0
    for character in text:
        end = min(length, place + int(generator.integers(*TONE_SAMPLES, endpoint=True)))
        if character != "|" and end > place:
            frequency = LOWEST_TONE * NEXT_TONE ** ALPHABET.index(character)
            phase = 2 * math.pi * frequency / SAMPLING_RATE * np.arange(end - place)
            sound[place:end] += 0.5 * np.sin(phase) * np.hanning(end - place)
        place = end
    return (sound * (FULL_SCALE - 1)).clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def spoken(run: Run, options: SpeechOptions) -> Path:
    """Return the cache folder with audio.npy, ends.npy and transcripts.json.

    If the cache lacks the folder, the sentences are synthesized into it. Length limits are no part
    of the cache's key, so that a sweep over them synthesizes once.
    """
    sentences = list(islice(docstring_sentences(), options.samples))
    key: dict[str, Any] = {
        "form": CACHE_FORM,
        "speaker": speaker_version(),
        "voice": [options.voice, options.words_per_minute],
        "sentences": hashlib.sha256("\n".join(sentences).encode()).hexdigest(),
    }
    return run.cache("speech", key, partial(_fill, sentences, options))


def docstring_sentences() -> Iterator[str]:
    """Yield the first sentence of each docstring of the standard library, without repetitions."""
    seen: set[str] = set()
    files = text_sources.stdlib_files(STDLIB_BYTES)
    sources = text_sources.read_documents(
        files, field="", limit_bytes=STDLIB_BYTES, skip_undecodable=True
    )
    for docstring in (text for source in sources for text in _docstrings(source)):
        sentence = " ".join(docstring.split("\n\n")[0].split())
        if SENTENCE.fullmatch(sentence) and sentence not in seen:
            seen.add(sentence)
            yield sentence


def _docstrings(source: str) -> Iterator[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # What the limit has cut in two.
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield text


def _fill(sentences: list[str], options: SpeechOptions, folder: Path) -> None:
    with ThreadPoolExecutor(available_cores()) as pool:
        pieces = list(pool.map(partial(speak, options=options), sentences))
    ends = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    np.save(folder / "audio.npy", np.concatenate(pieces), allow_pickle=False)
    np.save(folder / "ends.npy", ends, allow_pickle=False)
    transcripts = [transcript_of(sentence) for sentence in sentences]
    (folder / "transcripts.json").write_text(json.dumps(transcripts), encoding="utf8")


def speak(sentence: str, options: SpeechOptions) -> Audio:
    """Return espeak-ng's audio of a sentence at 16,000 samples per second.

    Raises ScenarioError if espeak-ng fails, as for an unknown voice.
    """
    speed = str(options.words_per_minute)
    command = [SPEAKER, "-v", options.voice, "-s", speed, "--stdin", "--stdout"]
    done = subprocess.run(
        command, input=sentence.encode(), capture_output=True, timeout=SPEAK_SECONDS, check=False
    )
    if done.returncode or not done.stdout:
        reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise ScenarioError(f"data.voice {options.voice!r}: espeak-ng does not speak: {reason}")
    with wave.open(io.BytesIO(done.stdout)) as sound:
        rate = sound.getframerate()
        # The length in the header of a stream is not known when it is written.
        raw = np.frombuffer(sound.readframes(len(done.stdout) // 2), dtype="<i2")
    common = math.gcd(rate, SAMPLING_RATE)
    resampled = resample_poly(raw.astype(np.float64), SAMPLING_RATE // common, rate // common)
    return np.rint(resampled).clip(-FULL_SCALE, FULL_SCALE - 1).astype(np.int16)


def transcript_of(sentence: str) -> str:
    """Return a sentence as a transcript, in the characters of `ALPHABET`."""
    words = re.findall(r"[A-Z']+", sentence.upper())
    return "|".join(words)
