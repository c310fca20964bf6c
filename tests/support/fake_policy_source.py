"""A policy source whose policy a test sets."""

from __future__ import annotations

from pathlib import Path

from control_plane.policy.folder import FolderReader
from control_plane.policy.source.policy_source import PolicySource
from control_plane.policy.source.revision import Origin
from penstock.policy.policy import Policy
from penstock.policy.provenance import Provenance


class OfferedPolicy(PolicySource):
    """A source with a policy that a test offers. The policy is fresh unless a test clears `is_fresh`."""

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
