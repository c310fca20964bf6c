"""The commit of a policy, attached to every accepted revision and to the plans made under it."""

from __future__ import annotations

import msgspec


class Provenance(msgspec.Struct, frozen=True):
    """The commit that a policy was read from."""

    repository: str
    """Address of the repository, without credentials."""
    ref: str
    """Branch or tag that pointed at the commit."""
    commit: str
    """Id of the commit, in hexadecimal."""
    author: str
    """Name and address of the author, from the commit; not verified."""
    authored_at: float
    """Unix time (s) of the commit, by the author's clock."""
    subject: str
    """First line of the commit message."""

    def __str__(self) -> str:
        return f"{self.commit[:12]} by {self.author}: {self.subject}"
