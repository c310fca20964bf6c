"""Revisions of the policy source: where the policy in force is from, and the result of checking each revision."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.policy.provenance import Provenance

MAX_ERRORS = 100
"""Errors of a refused revision that are kept and shown; whoever mends it lints it for the rest."""


class Origin(StrEnum):
    """Where the policy in force came from."""

    FOLDER = "folder"
    REPOSITORY = "repository"
    STORE = "store"
    """The source has never been good since the start, so what the plan in force names was taken instead."""


class RevisionResult(msgspec.Struct, frozen=True):
    """What became of one revision of the source: accepted whole, or refused whole."""

    digest: str
    """Of the compiled policy; empty where the revision was refused."""
    provenance: Provenance | None
    at: float
    """Unix time (s) when it was judged."""
    errors: tuple[str, ...] = ()
    """All that is wrong with it, up to MAX_ERRORS; empty where it was accepted."""


class Revision(msgspec.Struct, frozen=True):
    """One revision of the policy source, accepted or refused as a whole."""

    number: int
    """Grows by one with every revision."""
    at: float
    """Unix time (s) when it was judged."""
    digest: str
    """Of the compiled policy; empty where the revision was refused."""
    provenance: Provenance | None
    """The commit; null where the source is a folder."""
    errors: tuple[str, ...]
    """Why it was refused; empty where it was accepted."""


class RevisionPage(msgspec.Struct, frozen=True):
    """Some revisions, newest first."""

    items: tuple[Revision, ...]
    next_cursor: str | None
    """Give it as `cursor` to have those before these; null: there are none."""
