"""Revisions of the policy source: where the policy in force is from, and the result of checking each revision."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.policy.provenance import Provenance

MAX_ERRORS = 100
"""Errors of a refused revision that are kept and shown; `penstock policy lint` shows all."""


class Origin(StrEnum):
    """Where the policy in force came from."""

    FOLDER = "folder"
    REPOSITORY = "repository"
    STORE = "store"
    """The policy of the published plan: the source has had no valid policy since the start."""


class RevisionResult(msgspec.Struct, frozen=True):
    """The result of checking one revision of the source, which is accepted or refused as a whole."""

    digest: str
    """Digest of the compiled policy; empty where the revision was refused."""
    provenance: Provenance | None
    """The commit; null where the source is a folder."""
    at: float
    """Unix time (s) when it was checked."""
    errors: tuple[str, ...] = ()
    """Why it was refused, at most MAX_ERRORS; empty where it was accepted."""


class Revision(RevisionResult, frozen=True, kw_only=True):
    """A recorded revision."""

    number: int
    """Grows by one with every revision."""


class RevisionPage(msgspec.Struct, frozen=True):
    """A page of revisions, newest first."""

    items: tuple[Revision, ...]
    next_cursor: str | None
    """Pass it as `cursor` for the next older revisions; null on the last page."""
