"""Conditions on stored runs: a small language, parsed into SQLAlchemy and never into SQL text.

`train.micro_batch_size >= 4 and status = ok and not (stack in (nf4, lora) or tags = nightly)`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from sqlalchemy import ColumnElement, and_, false, func, not_, or_

from accel_bench.errors import StoreError
from accel_bench.store.names import Field

MAXIMUM_LETTERS = 10_000
"""Largest length of a condition in characters."""

LETTERS_SHOWN = 200
"""Largest length of a condition in an error, in characters."""

MAXIMUM_DEPTH = 50
"""Largest depth of nested parentheses and negations."""

MAXIMUM_COMPARISONS = 500
"""Largest number of comparisons: SQLite takes no expression that is 1,000 levels deep."""

OPERATORS = ("<=", ">=", "!=", "==", "=", "<", ">", "~")
"""Comparison operators; `~` compares with a pattern in which * is any text."""

KEYWORDS = ("and", "or", "not", "in", "is", "null")

_TOKEN = re.compile(
    r"""\s*(?:(?P<sign><=|>=|!=|==|[=<>~(),])"""
    r"""|'(?P<single>[^']*)'|"(?P<double>[^"]*)"|(?P<word>[^\s()<>=!~,'"]+))"""
)


class Token(NamedTuple):
    """Token of a condition."""

    text: str

    kind: str
    """Kind of token: `sign`, `word`, `keyword`, `text` for a quoted one, or `end`."""

    place: int
    """Position of the token in characters, from 0."""


def parse_condition(text: str, field: Callable[[str], Field]) -> ColumnElement[bool]:
    """Return the SQL condition that a text states; `field` returns a field by its name.

    Raises StoreError with the position of a syntax error.
    """
    if len(text) > MAXIMUM_LETTERS:
        raise StoreError(f"a condition of {len(text)} letters; {MAXIMUM_LETTERS} are allowed")
    return _Parser(text, field).parse()


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise _error(text, len(text) - len(text[place:].lstrip()), "a name or an operator")
        kind = str(match.lastgroup)
        word = match[kind]
        quoted = kind in ("single", "double")
        keyword = kind == "word" and word.lower() in KEYWORDS
        start = match.start(kind) - quoted
        yield Token(word, "text" if quoted else "keyword" if keyword else kind, start)
        place = match.end()
    yield Token("", "end", len(text))


def _error(text: str, place: int, expected: str) -> StoreError:
    excerpt = repr(text[place : place + 20]) if text[place:].strip() else "its end"
    shown = text if len(text) <= LETTERS_SHOWN else f"{text[:LETTERS_SHOWN]}..."
    return StoreError(
        f"the condition {shown!r} cannot be understood at letter {place + 1}: {expected} was "
        f"expected and {excerpt} was found, such as `status = ok and tokens_per_second > 1e4`"
    )


class _Parser:
    """Recursive-descent parser of one condition."""

    def __init__(self, text: str, field: Callable[[str], Field]) -> None:
        self._text = text
        self._field = field
        self._tokens = list(_tokens(text))
        self._depth = 0
        self._comparisons = 0

    def parse(self) -> ColumnElement[bool]:
        condition = self._either()
        if self._next.kind != "end":
            raise self._expected("`and`, `or` or its end")
        return condition

    @property
    def _next(self) -> Token:
        return self._tokens[0]

    def _take(self, *words: str) -> bool:
        """Advance past a keyword or sign if it is the next token; return whether it was."""
        matches = self._next.kind in ("keyword", "sign") and self._next.text.lower() in words
        if matches:
            self._tokens.pop(0)
        return matches

    def _expected(self, what: str) -> StoreError:
        return _error(self._text, self._next.place, what)

    def _either(self) -> ColumnElement[bool]:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return or_(*parts) if len(parts) > 1 else parts[0]

    def _both(self) -> ColumnElement[bool]:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return and_(*parts) if len(parts) > 1 else parts[0]

    def _one(self) -> ColumnElement[bool]:
        self._depth += 1
        if self._depth > MAXIMUM_DEPTH:
            raise self._expected(f"no more than {MAXIMUM_DEPTH} levels")
        if self._take("not"):
            condition = negated(self._one())
        elif self._take("("):
            condition = self._either()
            if not self._take(")"):
                raise self._expected("`)`")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> ColumnElement[bool]:
        if self._next.kind != "word":
            raise self._expected("the name of a column")
        self._comparisons += 1
        if self._comparisons > MAXIMUM_COMPARISONS:
            raise self._expected(
                f"the end of at most {MAXIMUM_COMPARISONS} comparisons (`in (A, B)` takes many "
                "values)"
            )
        field = self._field(self._tokens.pop(0).text)
        if self._take("is"):
            inverted = self._take("not")
            if not self._take("null"):
                raise self._expected("`null`")
            return field.is_known() if inverted else not_(field.is_known())
        inverted = self._take("not")
        if self._take("in"):
            condition = field.among(self._list())
            return negated(condition) if inverted else condition
        operator = self._next.text
        if inverted or self._next.kind != "sign" or not self._take(*OPERATORS):
            raise self._expected("one of " + " ".join((*OPERATORS, "in", "is")))
        value = self._value()
        if operator == "!=":
            return negated(field.compare("=", value))
        return field.compare("=" if operator == "==" else operator, value)

    def _list(self) -> list[str]:
        if not self._take("("):
            raise self._expected("`(`")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(")"):
            raise self._expected("`,` or `)`")
        return values

    def _value(self) -> str:
        if self._next.kind not in ("word", "text", "keyword"):
            raise self._expected("a value")
        return self._tokens.pop(0).text


def negated(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the negation of a condition; a run without a value for the condition matches too."""
    return not_(func.coalesce(condition, false()))
