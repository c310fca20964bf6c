"""What somebody may have meant who wrote a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggestion(word: str, known: Iterable[str], otherwise: str) -> str:
    """A remedy for a word that is not known: the likeliest that is, else all of a few, else `otherwise`."""
    known = sorted(known)
    close = get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"use one of {', '.join(known)}" if 0 < len(known) <= 12 else otherwise
