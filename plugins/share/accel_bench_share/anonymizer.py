"""Anonymization: names of people, hosts and folders are removed from texts to be shared."""

from __future__ import annotations

import getpass
import os
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accel_bench.documents.redaction import FOLDER

USER, HOST = "USER", "HOST"
"""Replacements of names, valid in the name of a scenario; folders are replaced by `FOLDER`."""

MINIMUM_NAME = 2
"""Minimum number of characters of a name that is replaced as a word."""

GENERIC = frozenset(
    "admin default guest jovyan localhost nobody root runner test ubuntu user users".split()
)
"""Names too common to identify anybody."""

_HOME = re.compile(r"/(?:home|Users)/([^/\s\"':;,]+)")
_PART = r"[^\s/\"'<>:;,()\[\]{}=|`]+"
_START = r"(?<![\w.~\]\-/])"
_FOLDERS = re.compile(rf"{_START}(?:(?:file://)?/(?!/)(?:{_PART}/)+|~[\w.\-]*/(?:{_PART}/)*)")
"""Pattern of the folders in an absolute path, unlike the path of a URL."""

_HOME_ITSELF = re.compile(rf"{_START}/(?:home|Users)/{_PART}")


@dataclass(frozen=True)
class Anonymizer:
    """Replacer of names of users and hosts in texts; equal names get equal replacements."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    @classmethod
    def of_texts(
        cls, texts: Iterable[str], hosts: Iterable[str], keep: Collection[str] = ()
    ) -> Anonymizer:
        """Return an anonymizer for `hosts`, this process's user, and users named in `texts`.

        A user is found by a path of a home folder. A name in `keep`, such as a key of a JSON
        schema, stays where it stands as a word.
        """
        homes = {name for text in texts for name in _HOME.findall(text)}
        here = {socket.gethostname(), *hosts}
        shorts = {name.partition(".")[0] for name in here if not _is_address(name)}
        return cls(_telling({*homes, *_own_names()}, keep), _telling(here | shorts, keep))

    def text(self, text: str) -> str:
        """Return a text with replaced names; of an absolute path only the last part is left."""
        for name, pattern, word in self._patterns:
            if name in text:
                text = pattern.sub(word, text)
        if "/" not in text:
            return text
        return _FOLDERS.sub(f"{FOLDER}/", _HOME_ITSELF.sub(f"/home/{USER}", text))

    def host(self, name: str) -> str:
        """Return the replacement of a host's name, such as `HOST1`; `HOST` for an unknown name."""
        return f"{HOST}{self.hosts.index(name) + 1}" if name in self.hosts else HOST

    def value(self, value: Any) -> Any:
        """Return a JSON value with replaced names in all its texts and keys."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    @cached_property
    def _patterns(self) -> list[tuple[str, re.Pattern[str], str]]:
        """Tuples (name, pattern of the name as a word, replacement), the longest names first."""
        words = {name: f"{HOST}{number}" for number, name in enumerate(self.hosts, 1)}
        words |= dict.fromkeys(self.users, USER)
        return [
            (name, re.compile(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"), words[name])
            for name in sorted(words, key=lambda name: (-len(name), name))
        ]


def names_within(schema: Mapping[str, Any]) -> set[str]:
    """Return the property names and fixed words of a JSON schema, which valid data must keep."""
    words: set[str] = set()
    below: list[Any] = [schema]
    while below:
        part = below.pop()
        if isinstance(part, dict):
            words |= {str(key) for key in part.get("properties", {})}
            words |= {str(word) for word in (*part.get("enum", ()), part.get("const"))}
            below += part.values()
        elif isinstance(part, list):
            below += part
    return words


def _telling(names: Iterable[str], keep: Collection[str]) -> tuple[str, ...]:
    left_out = {*GENERIC, *keep}
    return tuple(sorted(n for n in names if len(n) >= MINIMUM_NAME and n not in left_out))


def _own_names() -> set[str]:
    """Return the login names of this process's user."""
    names = {os.environ.get(key, "") for key in ("USER", "LOGNAME", "SUDO_USER")}
    try:
        names.add(getpass.getuser())
    except (KeyError, OSError):  # a container's user may have no name
        pass
    return names


def _is_address(name: str) -> bool:
    return bool(re.fullmatch(r"[0-9.:a-fA-F]*[.:][0-9a-fA-F.:]*", name))
