"""Errors of a policy bundle, each with file, line, field and remedy, and suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import msgspec

WHOLE_BUNDLE = "(bundle)"
"""Stands for the file where an error belongs to none, such as a missing document."""


MAX_ERRORS = 1_000
"""Errors of one file after which the rest of it is not read, and of a bundle after which the rest is not judged."""


class PolicyError(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong, and what to do about it."""

    file: str
    line: int
    """From 1; 0 where the error belongs to no line."""
    field: str
    """Path of the field, such as `match.countries[1]`; empty where the error is not of one field."""
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
    """The bundle is not taken, none of it; `errors` has everything that is wrong, in order of file and line."""

    def __init__(self, errors: Iterable[PolicyError]) -> None:
        self.errors = tuple(sorted(set(errors)))
        super().__init__("\n".join(str(error) for error in self.errors))


def spelled(path: Iterable[str | int]) -> str:
    """A field's path as people write it: `match.countries[1]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def suggest(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy for a word that is not known: the likeliest that is, else all of a few, else `otherwise`."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of {', '.join(known)}" if 0 < len(known) <= 12 else otherwise
