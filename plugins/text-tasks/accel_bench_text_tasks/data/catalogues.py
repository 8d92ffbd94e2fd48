"""Gettext catalogues (translated messages) installed on this machine, and their content."""

from __future__ import annotations

import hashlib
import struct
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from accel_bench.modeling.data.text_sources import home_path

ENGLISH = "en"
"""Language of catalogues' original messages, which needs no catalogue."""

TWO_LETTERS = dict(
    pair.split("=")
    for pair in (
        "ara=ar bul=bg cat=ca ces=cs dan=da deu=de ell=el eng=en est=et eus=eu fas=fa fin=fi "
        "fra=fr gle=ga glg=gl heb=he hin=hi hrv=hr hun=hu ind=id isl=is ita=it jpn=ja kat=ka "
        "kor=ko lav=lv lit=lt nld=nl nob=nb pol=pl por=pt ron=ro rus=ru slk=sk slv=sl spa=es "
        "sqi=sq srp=sr swe=sv tam=ta tha=th tur=tr ukr=uk vie=vi zho=zh_CN"
    ).split()
)
"""Two-letter folder names of languages by three-letter codes."""

MAGIC = 0x950412DE
"""Magic number at the start of a catalogue, which shows its byte order."""

PLURAL, CONTEXT = "\0", "\4"
"""Separator of plural forms, and separator between context and text."""


def language(code: str) -> str:
    """Return the name of a language's folder of catalogues: `fr` for `fra`, `fra_Latn` or `fr`."""
    whole = code.replace("-", "_")
    first, _, rest = whole.partition("_")
    short = TWO_LETTERS.get(first.lower())
    if short is None:
        return whole
    return f"{short}_{rest}" if len(rest) == 2 else short  # a script is no region


def is_english(code: str) -> bool:
    """Return whether a language code is English, the language of the original messages."""
    return language(code).partition("_")[0] == ENGLISH


def files(code: str, path: str | None) -> list[Path]:
    """Return a language's catalogue files, sorted by name, below the folder `path` or, if that is
    None, of this machine."""
    name = language(code)
    roots = _roots() if path is None else [home_path(path)]
    catalogues = [file for root in roots for file in root.glob(f"{name}/LC_MESSAGES/*.mo")]
    return sorted(catalogues, key=lambda file: (file.name, str(file)))


def digest(catalogues: list[Path]) -> str:
    """Return the SHA-256 of the catalogues' names and content, in hexadecimal."""
    hashed = hashlib.sha256()
    for file in catalogues:
        content = file.read_bytes()
        hashed.update(f"{file.parent.parent.name}/{file.name}:{len(content)}:".encode() + content)
    return hashed.hexdigest()


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each message of a catalogue with its translation, both in the first plural form.

    Reading stops at a message that cannot be decoded.
    """
    content = path.read_bytes()
    order = "<" if content[:4] == struct.pack("<I", MAGIC) else ">"
    try:
        magic, _, count, ids, texts = struct.unpack_from(f"{order}5I", content)
        if magic != MAGIC:
            return
        for number in range(count):
            pair = []
            for table in (ids, texts):
                size, start = struct.unpack_from(f"{order}2I", content, table + 8 * number)
                pair.append(content[start : start + size].decode())
            text = pair[0].partition(PLURAL)[0].rpartition(CONTEXT)[2]
            translated = pair[1].partition(PLURAL)[0]
            if text and translated:
                yield text, translated
    except (struct.error, UnicodeDecodeError):
        return


def _roots() -> list[Path]:
    """Return the locale folders of the system and of installed Python packages."""
    packages = Path(sysconfig.get_path("purelib"))
    system = [Path(root, "share", "locale") for root in dict.fromkeys((sys.prefix, "/usr"))]
    return [*system, *sorted(packages.glob("*/locale")), *sorted(packages.glob("*/*/locale"))]
