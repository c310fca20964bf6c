"""Revisions of the policy source: the origin of the policy in force, and the check result of each revision."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.policy.provenance import Provenance

MAX_ERRORS = 100
"""Maximum number of errors of a refused revision that are kept and shown; `penstock policy lint` shows all errors."""


class Origin(StrEnum):
    """Origin of the policy in force."""

    FOLDER = "folder"
    REPOSITORY = "repository"
    STORE = "store"
    """The policy of the published plan: the source has had no valid policy since the start."""


class RevisionResult(msgspec.Struct, frozen=True):
    """The result of checking one revision of the source, which is accepted or refused as a whole."""

    digest: str
    """Digest of the compiled policy; empty where the revision is no valid bundle."""
    provenance: Provenance | None
    """The commit; null where the source is a folder."""
    at: float
    """Unix time (s) of the check."""
    errors: tuple[str, ...] = ()
    """Errors for which the revision was refused, at most MAX_ERRORS; empty if the revision was accepted."""


class Revision(RevisionResult, frozen=True, kw_only=True):
    """A recorded revision."""

    number: int
    """Number of the revision; increases by one with every revision."""
