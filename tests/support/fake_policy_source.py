"""A policy source that has what a test puts into it."""

from __future__ import annotations

from pathlib import Path

from control_plane.policy.folder import FolderReader
from control_plane.policy.source.policy_source import PolicySource
from control_plane.policy.source.revision import Origin
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance


class OfferedPolicy(PolicySource):
    """Read just now, unless a test sets another time."""

    is_fresh = True

    def __init__(self, policy: Policy | None = None) -> None:
        super().__init__(FolderReader(Path("nowhere")))
        self.offer(policy)

    @property
    def fresh(self) -> bool:
        return self.is_fresh

    def offer(self, policy: Policy | None, commit: str = "") -> None:
        self.current = policy
        self.origin = Origin.REPOSITORY if commit else Origin.FOLDER
        self.provenance = Provenance("repository", "main", commit, "an author", 1.0, "a subject") if commit else None
