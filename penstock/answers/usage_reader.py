"""The usage that an engine reports, read at its place in an answer or in the events of a stream.

A place is a JSON pointer of the route (`UsageFields`). A member of the same name elsewhere, such as a tool schema that
the engine echoes, is not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from penstock.answers.token_counts import Usage
from penstock.routes.json_pointer import parse_pointer
from penstock.routes.route import UsageFields

MAX_REPORTED_TOKENS: Final = 100_000_000
"""Maximum number of tokens that a report may state, such as that of a large batch of embeddings. A report of more, of
less than none, or of anything but a whole number states that the number is not known, whatever was reported before."""

MAX_NUMBER_CHARS: Final = 24

Raw = Any
"""`msgspec.Raw`. Its stubs declare it as a subclass of bytes, which it is not; compiled code would check for bytes."""

Fields = Mapping[str, Raw]
"""The members of an object, undecoded."""

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EMPTY: Final = frozenset({b"null", b"[]"})
_number: Final = msgspec.json.Decoder(int | float)
_UNUSABLE: Final = -1
_NULL: Final = b"null"


class UsagePlaces:
    """The places of the usage in the answers of one route, as tokens of their pointers."""

    def __init__(self, fields: UsageFields, *, generates: bool = True) -> None:
        """Prepare to read `fields`.

        Args:
            generates: whether answers have generated tokens, so that a report without their number is incomplete.

        Raises:
            ValueError: a JSON pointer is malformed.
        """
        self.objects = tuple(parse_pointer(pointer) for pointer in fields.objects)
        self.prompt = fields.prompt_tokens
        self.answer = fields.answer_tokens
        self.cached = fields.cached_tokens
        self.needs_answer = generates and self.answer != ()
        self.numbers = {
            pointer: parse_pointer(pointer)
            for pointer in dict.fromkeys((*fields.prompt_tokens, *fields.answer_tokens, *fields.cached_tokens))
        }


class ReportedUsage:
    """The numbers that one answer has reported so far; of several reports of one number, the last counts."""

    def __init__(self, places: UsagePlaces) -> None:
        """Start without a report."""
        self._places = places
        self._numbers: dict[str, int] = {}

    def read(self, fields: Fields) -> bool:
        """Read the numbers in one record: an answer, or the data of an event. Returns whether it reports any."""
        found = False
        for tokens in self._places.objects:
            usage = members_at(fields, tokens)
            if usage:
                for pointer, path in self._places.numbers.items():
                    raw = usage.get(path[0]) if len(path) == 1 else value_at(usage, path)
                    if raw is not None and bytes(memoryview(raw)[:4]) != _NULL:
                        self._numbers[pointer] = _count(raw)
                        found = True
        return found

    def add(self, other: ReportedUsage) -> None:
        """Add the numbers of another answer of the same request, such as a further element of an array of answers."""
        for pointer, number in other._numbers.items():
            before = self._numbers.get(pointer, 0)
            self._numbers[pointer] = before + number if before >= 0 and number >= 0 else _UNUSABLE

    def replace(self, usage: Usage) -> None:
        """Replace the numbers by those of a later report, which was read elsewhere."""
        places = self._places
        answer_tokens = usage.answer_tokens if usage.answer_is_known else _UNUSABLE
        tokens = (usage.prompt_tokens, answer_tokens, usage.cached_tokens)
        self._numbers = {
            pointers[0]: number
            for pointers, number in zip((places.prompt, places.answer, places.cached), tokens, strict=True)
            if pointers
        }

    @property
    def usage(self) -> Usage | None:
        """The usage; None if neither prompt nor answer tokens were reported in a usable form."""
        places = self._places
        prompt, answer, cached = map(self._sum, (places.prompt, places.answer, places.cached))
        if (prompt is None or prompt < 0) and (answer is None or answer < 0):
            return None
        prompt_is_known = prompt is not None and prompt >= 0 and (cached is None or cached >= 0)
        answer_is_known = answer >= 0 if answer is not None else not places.needs_answer
        prompt = max(0, prompt or 0)
        return Usage(prompt, max(0, answer or 0), max(0, min(cached or 0, prompt)), prompt_is_known, answer_is_known)

    def _sum(self, pointers: tuple[str, ...]) -> int | None:
        """The sum of numbers; None if none is stated, _UNUSABLE if one of them is."""
        numbers = [self._numbers[pointer] for pointer in pointers if pointer in self._numbers]
        return None if not numbers else _UNUSABLE if _UNUSABLE in numbers else sum(numbers)


def members_of(raw: bytes | Raw) -> dict[str, Raw] | None:
    """The undecoded members of a JSON object; None for anything else."""
    try:
        members: dict[str, Raw] = _fields.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return members


def is_empty(raw: Raw) -> bool:
    """Whether a value is null or an empty array."""
    text = bytes(raw)
    return text in _EMPTY or (text.startswith(b"[") and not text[1:-1].strip())


def members_at(fields: Fields, tokens: tuple[str, ...]) -> Fields | None:
    """The members of the object at a path below `fields`; `fields` for an empty path, None if there is no object."""
    for token in tokens:
        raw = fields.get(token)
        inner = members_of(raw) if raw is not None else None
        if inner is None:
            return None
        fields = inner
    return fields


def value_at(fields: Fields, tokens: tuple[str, ...]) -> Raw | None:
    """The undecoded value at a path of at least one key below `fields`; None if it is absent."""
    inner = members_at(fields, tokens[:-1])
    return inner.get(tokens[-1]) if inner is not None else None


def _count(raw: Raw) -> int:
    """A number of tokens; _UNUSABLE for anything but a whole number from 0 to MAX_REPORTED_TOKENS."""
    if len(memoryview(raw)) > MAX_NUMBER_CHARS:
        return _UNUSABLE
    try:
        number: int | float = _number.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _UNUSABLE
    return int(number) if 0 <= number <= MAX_REPORTED_TOKENS and number == int(number) else _UNUSABLE
