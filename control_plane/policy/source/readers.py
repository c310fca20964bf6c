"""The interface of bundle readers: each returns a bundle's text and its commit, or the reason why it cannot be read."""

from __future__ import annotations

from typing import Protocol

import msgspec

from control_plane.policy.bundle_errors import PolicyError
from penstock.policy.provenance import Provenance


class Bundle(msgspec.Struct, frozen=True):
    """One state of a bundle as it was read."""

    files: dict[str, str]
    """Text by file name; empty where there are `errors`."""
    errors: tuple[PolicyError, ...] = ()
    """Errors of the files themselves, such as a symbolic link; errors of their content are found by the compiler."""
    provenance: Provenance | None = None
    """The commit; None for a folder."""


class SourceUnreadable(Exception):
    """The source could not be read, so its current state is unknown; the message has no secrets."""


class BundleReader(Protocol):
    """Reads the current state of a bundle, off the event loop and within bounds of time and size."""

    place: str
    """Name of the source for logs and messages, without secrets."""
    atomic: bool
    """Whether a read returns one consistent state, never a half-written one."""
    poll_s: float
    """Time (s) between two reads."""

    async def read(self) -> Bundle:
        """Return the bundle, which is equal to the previous bundle if nothing has changed.

        Raises:
            SourceUnreadable: the source cannot be read now.
        """

    async def close(self) -> None:
        """Release the resources that are held between two reads."""
