"""Revisions of models as engines report them, compared as what they are: repository or path, and commit, digest or ref.

Engines spell one revision differently: a short and a full hash, `refs/pr/1`, a path in a cache of Hugging Face. A hash
and a ref may be the same commit, so that they do not differ as far as is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from penstock.policy.adapter_patterns import ANY, matches

_SNAPSHOT: Final = re.compile(r"(?:.*/)?models--([^/]+)/snapshots/([^/]+)")
"""A path in a cache of Hugging Face: the repository, and the commit."""

_HASH: Final = re.compile(r"(?:sha256[:-])?([0-9a-f]{7,64})")
_HOSTS: Final = ("https://huggingface.co/", "hf://")
_REFS: Final = ("refs/", "heads/", "tags/")
_SURE_CHARS: Final = 32
"""Number of digits from which a hash may have no letter: shorter numbers are versions."""


class ModelRevision(NamedTuple):
    """One revision."""

    source: str
    """Repository or path; empty if only a digest is known."""
    at: str
    """Commit or digest in lower case, or ref; empty if unknown."""
    is_hash: bool
    """Whether `at` is a commit or digest, or the beginning of one."""

    @property
    def text(self) -> str:
        """The revision in one spelling."""
        return f"{self.source}@{self.at}" if self.source and self.at else self.source or self.at


def revision_of(text: str) -> ModelRevision:
    """Return the revision that an engine or a policy states."""
    text = text.rstrip("/") or text
    snapshot = _SNAPSHOT.fullmatch(text)
    if snapshot is not None:
        return _revision(snapshot[1].replace("--", "/", 1), snapshot[2])
    source, at_sign, at = text.rpartition("@")
    if not at_sign:
        source, at = ("", text) if _digits_of(text) else (text, "")
    return _revision(source, at)


def same_spelling(texts: Collection[str]) -> dict[str, str]:
    """Return each text in the spelling that all texts of its revision share, with the longest hash that is known."""
    revisions = {text: revision_of(text) for text in set(texts)}
    longest = _longest({each.at for each in revisions.values() if each.is_hash})
    return {
        text: each._replace(at=longest[each.at]).text if each.is_hash else each.text for text, each in revisions.items()
    }


def comparable_parts(revisions: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Return what can be compared of the revisions of endpoints or regions, by name: sources, hashes, and refs.

    Args:
        revisions: texts in the spelling of `same_spelling`.
    """
    known = {name: revision_of(text) for name, text in revisions.items()}
    return (
        {name: each.source for name, each in known.items() if each.source},
        {name: each.at for name, each in known.items() if each.is_hash},
        {name: each.at for name, each in known.items() if each.at and not each.is_hash},
    )


def is_expected(expected: str, reported: str) -> bool:
    """Whether a reported revision is the one that a policy expects: in any spelling, or by its pattern."""
    if matches(expected, reported):
        return True
    found = revision_of(reported)
    if ANY in expected:
        return matches(expected, found.text)
    wanted = revision_of(expected)
    if wanted.source and wanted.source != found.source:
        return False
    if wanted.is_hash and found.is_hash:
        return found.at.startswith(wanted.at) or wanted.at.startswith(found.at)
    return wanted.at == found.at


def _revision(source: str, at: str) -> ModelRevision:
    at = at.replace("%2F", "/").replace("%2f", "/")
    digits = _digits_of(at)
    if not digits:
        for prefix in _REFS:
            at = at.removeprefix(prefix)
    for host in _HOSTS:
        source = source.removeprefix(host)
    return ModelRevision(source.rstrip("/") or source, digits or at, bool(digits))


def _digits_of(text: str) -> str:
    """The digits of a hash in lower case; empty for another text."""
    found = _HASH.fullmatch(text.lower())
    if found is None or (found[1].isdecimal() and len(found[1]) < _SURE_CHARS):
        return ""
    return found[1]


def _longest(hashes: Collection[str]) -> dict[str, str]:
    """Return for each hash the longest one that begins with it; itself if several different ones do."""
    ordered, longest = sorted(hashes), dict[str, str]()
    for at in range(len(ordered) - 1, -1, -1):
        each, ends, following = ordered[at], set[str](), at + 1
        while following < len(ordered) and ordered[following].startswith(each):
            ends.add(longest[ordered[following]])
            following += 1
        longest[each] = ends.pop() if len(ends) == 1 else each
    return longest
