"""Redaction: secrets in all output are replaced, found by their value or by their typical form."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from accel_bench.errors import AccelBenchError

ModelT = TypeVar("ModelT", bound=BaseModel)

REDACTED = "[redacted]"
"""Replacement of a secret."""

FOLDER = "[path]"
"""Replacement of the folders of a path in published runs."""

SPOILED = (
    "a text holds the value of a secret environment variable where a name or a number must stand; "
    "unset variables such as PASSWORD=float32 and run again"
)
"""Message for a value that cannot be shown or stored without secrets, with the way out."""

MINIMUM_LENGTH = 8
"""Shortest value in characters taken for a secret; shorter ones are words such as `true`."""

MINIMUM_LINE_LENGTH = 16
"""Shortest line in characters of a multi-line secret that is redacted on its own."""

_SECRET_WORDS = re.compile(
    r"pass(w(or)?ds?|phrases?|codes?)$|(^|_)(\w*secrets?|credentials?|creds?)(_|$)"
    r"|(api|access|private|secret|account|deploy|encryption|fernet|license|master|service"
    r"|signing|ssh)_?keys?(_id)?$"
    r"|(^|_)(auth|bearer|connection_?string|conn_?str(ing)?|cookies?|dsn|jwt|netrc|pw"
    r"|webhooks?(_ur[il])?)$"
)
_PASSWORD_WORD = re.compile(r"(?:^|_)(?P<before>[a-z0-9]+)_(?:pass|pwd)$")
_CAPITAL_WORD = re.compile(r"^pat$|(?:^|_)(?P<before>[a-z0-9]+)_(?:keys?|pat)$")
"""Pattern of words that mark a secret in a variable such as `STRIPE_KEY`, but not always in an
option such as `sort_key`."""
_TOKEN_WORD = re.compile(r"(?:^|_)(?:(?P<before>[a-z0-9]+)_)?[a-z0-9]*token$")
_NUMBER = re.compile(r"_\d+$")
_NAMES_A_PLACE = re.compile(r"_(path|file|dir|directory|folder)$")

_TOKENS_OF_TEXT = frozenset(
    "add additional audio boi bos cls cost decoder each end eoi eos eot extra first forced image "
    "last mask max min new next pad per prefix sep skip soft special start stop suffix unk use "
    "video".split()
)
"""Words before `token` in names about a tokenizer's or a model's tokens."""

_PASSES = frozenset("backward each first forward last multi old one per second single two".split())
"""Words before `pass` in names about passes over data, and before `pwd` about a folder."""

_OPEN_KEYS = frozenset("cache foreign hot partition primary public sort".split())
"""Words before `KEY` in the names of variables that hold no secret."""

_URL_PASSWORD = re.compile(r"://[^\s/?#:@]*:([^\s/?#]+)@")

_URL_USER = re.compile(
    r"(?<![A-Za-z0-9+.\-])([A-Za-z][A-Za-z0-9+.\-]{0,30}://)"
    r"(?:[^\s/?#\"'<>@:]{0,256}:[^\s/?#\"'<>]{1,1024}|[^\s/?#\"'<>@:]{20,1024})@"
)
_URL_QUERY = re.compile(
    r"([?&](?:(?:access_|auth_|id_)?token|api_?key|key|password|secret|sig|signature"
    r"|x-amz-(?:signature|security-token|credential))=)[^\s&#\"'<>]+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/\-]{16,}=*", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w\-])(--?[A-Za-z][\w.\-]*)(=|[ \t]+)(?!-)([^\s\"']+)")
_VARIABLE = re.compile(r"(?<![\w.\-])([A-Z][A-Z0-9_]*)(=)([^\s\"']+)")
_OPTION = re.compile(r"(-{0,2}[A-Za-z][\w.\-]*)=(.*)", re.DOTALL)
_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[.\-\s]+")

_SHAPES = re.compile(
    r"(?<![\w\-])(?:"
    r"hf_(?:(?=[A-Za-z]*\d)[A-Za-z0-9]{16,}|[A-Za-z0-9]{30,})"
    r"|sk-(?=[\w\-]{0,200}\d)[\w\-]{20,}"
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
    r"|xox[abeprs]-[A-Za-z0-9\-]{10,}|nvapi-[\w\-]{20,}"
    r"|eyJ[\w\-]{10,}\.eyJ[\w\-]{10,}\.[\w\-]*"
    r")"
)
"""Patterns of well-known tokens: hubs, clouds, forges, JSON web tokens."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


@lru_cache(maxsize=4096)
def looks_secret(name: str) -> bool:
    """Return whether a variable, key or flag with this name holds a secret. Names such as
    `HF_TOKEN`, `--api-key` and `accessToken` do. Names such as `pad_token`, `tokens_per_second` and
    `TOKEN_FILE` do not."""
    words = _NUMBER.sub("", _WORD_BORDER.sub("_", name.strip("-.")).lower())
    if _NAMES_A_PLACE.search(words):
        return False
    if _SECRET_WORDS.search(words):
        return True
    kinds = [(_TOKEN_WORD, _TOKENS_OF_TEXT), (_PASSWORD_WORD, _PASSES)]
    kinds += [(_CAPITAL_WORD, _OPEN_KEYS)] if name.isupper() else []
    searches = ((pattern.search(words), harmless) for pattern, harmless in kinds)
    return any(
        match is not None and match["before"] not in harmless for match, harmless in searches
    )


SHORT_LETTERS = 100
"""Largest length of texts whose redaction is cached, in characters."""


@dataclass(frozen=True)
class Redactor:
    """Replacement of secrets by `[redacted]`: known values, and texts that look like API tokens."""

    secrets: tuple[str, ...] = ()
    """Known secret values in every spelling, the longest first."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Redactor:
        """Return a redactor of the values of all variables whose names look secret.

        It also redacts the passwords in URLs that other variables hold.
        """
        values = [value for name, value in environ.items() if looks_secret(name)]
        values += (word for value in environ.values() for word in _URL_PASSWORD.findall(value))
        return cls(_spellings(value.strip() for value in values))

    @classmethod
    def of_this_process(cls, scenario: Mapping[str, str] | None = None) -> Redactor:
        """Return a redactor of secrets in this process's variables and in those of a `scenario`."""
        return cls.from_environment({**os.environ, **(scenario or {})})

    def redact(self, text: str) -> str:
        """Return the text with every secret replaced."""
        # The samples of a result repeat a few names a thousand times.
        short = len(text) <= SHORT_LETTERS
        return (_redacted_short if short else _redacted)(self.secrets, text)

    def redact_value(self, value: Any) -> Any:
        """Return a JSON value with all texts redacted, keys included."""
        if isinstance(value, str):
            redacted = self.redact(value)
            return value if redacted == value else redacted
        if isinstance(value, dict):
            return {self.redact(str(key)): self._entry(str(key), value[key]) for key in value}
        if isinstance(value, list | tuple):
            items = [self.redact_value(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        return value

    def redact_model(self, model: ModelT) -> ModelT:
        """Return a pydantic model with its texts redacted, validated again.

        Raises AccelBenchError if that makes it invalid: a secret equals a word that it must have.
        """
        try:
            return type(model).model_validate(self.redact_value(model.model_dump(mode="python")))
        except ValidationError as error:
            raise AccelBenchError(f"{SPOILED}: {error}") from error

    def redact_arguments(self, arguments: Sequence[str]) -> list[str]:
        """Return a command's arguments with secrets replaced, such as a value of `--token`."""
        done: list[str] = []
        follows_secret_flag = False
        for argument in arguments:
            if follows_secret_flag and not argument.startswith("--"):
                done.append(REDACTED)
            else:
                done.append(self._argument(argument))
            follows_secret_flag = argument.startswith("-") and looks_secret(argument)
        return done

    def _argument(self, argument: str) -> str:
        """Return an argument such as `--token=VALUE` or `plugin.token=VALUE` without its secret."""
        match = _OPTION.fullmatch(argument)
        if match and match[1].startswith("-") and _OPTION.fullmatch(match[2]):
            return f"{match[1]}={self._argument(match[2])}"  # such as --set=environment.TOKEN=VALUE
        if match and _is_secret(match[1].rpartition(".")[2], match[2], minimum=1):
            return f"{match[1]}={REDACTED}"
        return self.redact(argument)

    def _entry(self, key: str, value: Any) -> Any:
        if isinstance(value, int | float | None):  # Most of a result, and never a secret.
            return value
        if isinstance(value, str) and _is_secret(key, value):
            return REDACTED
        return self.redact_value(value)


def _redacted(secrets: tuple[str, ...], text: str) -> str:
    """Return the text with the values `secrets`, and texts that look like tokens, replaced."""
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    text = _URL_QUERY.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1{REDACTED}", text)
    text = _SHAPES.sub(REDACTED, text)
    text = _FLAG.sub(_without_value, text)
    return _VARIABLE.sub(_without_value, text)


_redacted_short = lru_cache(maxsize=4096)(_redacted)


def _is_secret(name: str, value: str, minimum: int = MINIMUM_LENGTH) -> bool:
    """Return whether `value`, of a variable or key `name`, is a secret of at least `minimum`
    characters. A tokenizer's words `<pad>` and `[PAD]` are no secrets."""
    return len(value) >= minimum and value[0] not in "<[" and looks_secret(name)


def _without_value(found: re.Match[str]) -> str:
    name, between, value = found.groups()
    return f"{name}{between}{REDACTED}" if _is_secret(name, value) else found[0]


def _spellings(values: Iterable[str]) -> tuple[str, ...]:
    """Return secret values and their long lines, unchanged and as escaped in URLs, JSON, Python."""
    spelled: set[str] = set()
    for value in values:
        if len(value) < MINIMUM_LENGTH:
            continue
        lines = [line.strip() for line in value.splitlines()]
        for text in (value, *(line for line in lines if len(line) >= MINIMUM_LINE_LENGTH)):
            plain = json.dumps(text, ensure_ascii=False)[1:-1]
            spelt = {quote(text), quote(text, safe=""), json.dumps(text)[1:-1], repr(text)[1:-1]}
            spelled |= {text, plain, *spelt}
    return tuple(sorted(spelled, key=lambda text: (-len(text), text)))
