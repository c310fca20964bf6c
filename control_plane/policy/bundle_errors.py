"""Errors of a policy bundle, each with file, line, field and remedy, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import msgspec

WHOLE_BUNDLE = "(bundle)"
"""File of an error that belongs to no file, such as a missing document."""


MAX_ERRORS = 1_000
"""Errors after which the rest of a file is not read, and the rest of a bundle is not checked."""


class PolicyError(msgspec.Struct, frozen=True, order=True):
    """One error of a bundle, and its remedy."""

    file: str
    line: int
    """From 1; 0 where the error belongs to no line."""
    field: str
    """Path of the field, such as `match.countries[1]`; empty where the error concerns no single field."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        field = f"{self.field}: " if self.field else ""
        # Names come from the bundle, and errors are shown in terminals and logs.
        return printable(f"{place}: {field}{self.problem}; {self.remedy}")


def printable(line: str) -> str:
    """Escapes the control characters of a line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in line
    )


class PolicyRefused(Exception):
    """The bundle is refused as a whole; `errors` has all errors, ordered by file and line."""

    def __init__(self, errors: Iterable[PolicyError]) -> None:
        self.errors = tuple(sorted(set(errors)))
        super().__init__("\n".join(str(error) for error in self.errors))


def field_path(path: Iterable[str | int]) -> str:
    """Format a field's path: `match.countries[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggest(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a remedy for an unknown word: the closest known word, else all of a few known words, else `otherwise`."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of {', '.join(known)}" if 0 < len(known) <= 12 else otherwise
