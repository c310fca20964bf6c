"""Text of error messages: paths of fields, suggestions for misspelled names, and escaped control characters."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def printable(line: str) -> str:
    """Escapes the control characters of a line."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in line
    )


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
