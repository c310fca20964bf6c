"""The commit of a policy, attached to every accepted revision and to the plans made under it."""

from __future__ import annotations

import msgspec


class Provenance(msgspec.Struct, frozen=True):
    """The commit whose content a policy is."""

    repository: str
    """Its address, without credentials."""
    ref: str
    """The branch or tag that pointed at it."""
    commit: str
    """Its id, in hexadecimal."""
    author: str
    """Name and address from the commit; not verified."""
    authored_at: float
    """Unix time (s), by the author's clock."""
    subject: str
    """First line of its message."""

    def __str__(self) -> str:
        return f"{self.commit[:12]} by {self.author}: {self.subject}"
