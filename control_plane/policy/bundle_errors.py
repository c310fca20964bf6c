"""Errors of a policy bundle, each with file, line, field and remedy."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from adapters.error_text import printable

WHOLE_BUNDLE = "(bundle)"
"""File of an error that belongs to no file, such as a missing document."""


MAX_ERRORS = 1_000
"""Number of errors after which the remainder of a file is not read, and the remainder of a bundle is not checked."""

MAX_SUGGESTIONS = 100
"""Number of errors after which misspelled names receive no suggestion: with thousands of unknown and known names,
suggestions take minutes."""


class PolicyError(msgspec.Struct, frozen=True, order=True):
    """One error of a bundle, and its remedy."""

    file: str
    line: int
    """Line number, from 1; 0 if the error belongs to no line."""
    field: str
    """Path of the field, such as `match.countries[1]`; empty where the error concerns no single field."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        field = f"{self.field}: " if self.field else ""
        # Names from the bundle may contain control characters, and errors are shown in terminals and logs.
        return printable(f"{place}: {field}{self.problem}; {self.remedy}")


class PolicyRefused(Exception):
    """The bundle is refused as a whole; `errors` has all errors, ordered by file and line."""

    def __init__(self, errors: Iterable[PolicyError]) -> None:
        self.errors = tuple(sorted(set(errors)))
        super().__init__("\n".join(str(error) for error in self.errors))
