"""The data plugin `translations`: parallel text of the programs that are installed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from accel_bench import Experiment, Run, hookimpl
from accel_bench_text_tasks.data import catalogues
from accel_bench_text_tasks.data.pairs import PairOptions, Pairs


class TranslationsOptions(PairOptions):
    """Which languages, and where their catalogues are."""

    source_lang: str = Field("eng", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Language to translate from: its code in ISO 639, such as `eng`, `fra` or `pt_BR`."""

    target_lang: str = Field("fra", pattern=r"^[A-Za-z]{2,3}([_@-][A-Za-z]+)*$")
    """Language to translate to."""

    path: str | None = None
    """Folder of gettext's catalogues, `LANG/LC_MESSAGES/*.mo`; null: those of this system and of
    the installed Python packages."""


class Translations(Pairs[TranslationsOptions]):
    """Sentences of programs in two languages, from the catalogues that their packages install."""

    Options = TranslationsOptions

    def fingerprint(self, experiment: Experiment) -> str:
        """Return a digest of the catalogues of both languages."""
        return catalogues.digest(self._files())

    @hookimpl
    def check_scenario(self) -> Iterable[str]:
        """Check that there are catalogues of both languages."""
        source, target = self.options.source_lang, self.options.target_lang
        if catalogues.language(source) == catalogues.language(target):
            yield f"data.source_lang and data.target_lang are both {source}; choose another one"
        for lang in (source, target):
            if not catalogues.is_english(lang) and not catalogues.files(lang, self.options.path):
                yield (
                    f"there are no translation catalogues of {lang} in "
                    f"{self.options.path or 'this system and its Python packages'}: install a "
                    "package that brings some, such as `pip install django`, or set data.path"
                )

    @hookimpl
    def prepare_experiment(self, run: Run) -> None:
        """Tokenize in a process that is not measured."""
        self._dataset(run)

    def _files(self) -> list[Any]:
        langs = (self.options.source_lang, self.options.target_lang)
        return [one for lang in langs for one in catalogues.files(lang, self.options.path)]

    def _dataset(self, run: Run) -> Any:
        from accel_bench_text_tasks.data import translations_impl

        return translations_impl.dataset_of(run, self.options)
