"""The data plugin `speech`: utterances with transcripts, of tones or spoken by espeak-ng."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from accel_bench import Experiment, Options, Run, hookimpl
from accel_bench.modeling.data import text_sources
from accel_bench_media.data.media_data import MediaData

if TYPE_CHECKING:
    from accel_bench.modeling.data.batch_plan import BatchPlan, Order, Padding
    from accel_bench_media.data.speech_impl import SpeechDataset

SPEAKER = "espeak-ng"
"""Name of the speech synthesizer's program and Debian package."""

ONE_SECOND = 10
"""Timeout in seconds of the speech synthesizer's version query."""


class SpeechOptions(Options):
    """Options of `speech`: the utterances, their lengths, and their batches."""

    source: Literal["tones", "espeak-ng"] = "tones"
    """Source of the utterances. `tones`: random words, with a tone for each letter; `espeak-ng`:
    first sentences of the standard library's docstrings, spoken by that program."""

    samples: int = Field(256, ge=1, le=1_000_000)
    """Number of generated utterances, before those outside the length limits are dropped."""

    min_audio_len: int = Field(1_000, ge=1, le=16_777_216)
    """Minimum length of an utterance, in audio samples of 1/16,000 s."""

    max_audio_len: int = Field(100_000, ge=1, le=16_777_216)
    """Maximum length of an utterance, in audio samples."""

    normalize_audio: bool = True
    """Normalize each utterance to mean 0 and variance 1."""

    padding: Literal["max_length", "longest"] = "longest"
    """Length to pad to: the longest utterance of all, or of the micro-batch."""

    bucketing: bool = False
    """Group utterances of similar lengths into one optimizer step, for less padding."""

    voice: str = Field("en", pattern=r"^[A-Za-z][A-Za-z0-9+_-]{0,63}$")
    """Voice of espeak-ng, by its name there."""

    words_per_minute: int = Field(160, ge=80, le=450)
    """Speaking rate of espeak-ng in words per minute."""

    @model_validator(mode="after")
    def _some_length(self) -> SpeechOptions:
        if self.min_audio_len > self.max_audio_len:
            raise ValueError(
                f"min_audio_len {self.min_audio_len} is larger than max_audio_len "
                f"{self.max_audio_len}"
            )
        return self


class Speech(MediaData[SpeechOptions]):
    """Seeded tones, or real sentences that a speech synthesizer speaks; nothing is downloaded."""

    Options = SpeechOptions
    _more_samples = "raise data.samples, or data.max_audio_len"
    tasks = frozenset({"ctc", "speech-pretraining", "speech-seq2seq"})

    def fingerprint(self, experiment: Experiment) -> str | None:
        """Return the synthesizer's version with a digest of its texts.

        Returns None for tones, and if the synthesizer is not installed.
        """
        if self.options.source == "tones" or shutil.which(SPEAKER) is None:
            return None
        digest = text_sources.content_digest(text_sources.stdlib_files(1_000_000))
        return f"{speaker_version()} {digest}"

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Yield a problem if the synthesizer is not installed."""
        if self.options.source == SPEAKER and shutil.which(SPEAKER) is None:
            yield (
                "data.source espeak-ng needs the program espeak-ng, of Debian's package espeak-ng: "
                "apt-get install espeak-ng; or set data.source to tones"
            )

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Synthesize utterances before the measurement, in a separate process."""
        from accel_bench_media.data import speech_impl

        if self.options.source == SPEAKER:
            speech_impl.spoken(run, self.options)

    @hookimpl
    def load_data(self, run: Run) -> SpeechDataset:
        """Return the utterances: tones made from `data.seed`, or synthesized ones."""
        from accel_bench_media.data import speech_impl

        dataset = speech_impl.load(run, self.options)
        run.on_evidence(dataset.evidence)
        return dataset

    def padding(self) -> Padding:
        """Return the option `padding`: `max_length`, or `longest` of the micro-batch."""
        return self.options.padding

    def _impl(self) -> Any:
        from accel_bench_media.data import speech_batches_impl

        return speech_batches_impl

    def _order(self, run: Run, plan: BatchPlan) -> Order | None:
        if not self.options.bucketing:
            return None
        return partial(self._impl().bucketed, run.dataset.lengths, plan)


def speaker_version() -> str:
    """Return the version text of the installed synthesizer, without the path of its data."""
    done = subprocess.run(
        [SPEAKER, "--version"], capture_output=True, text=True, timeout=ONE_SECOND, check=True
    )
    return done.stdout.partition("Data at")[0].strip()
