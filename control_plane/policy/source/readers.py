"""What a policy source reads: a bundle's text and where it is from, or why there is none to judge."""

from __future__ import annotations

from typing import Protocol

import msgspec

from control_plane.policy.bundle_errors import PolicyError
from penstock.policy.provenance import Provenance


class Bundle(msgspec.Struct, frozen=True):
    """One state of a bundle as it was read."""

    files: dict[str, str]
    """Text by file name; empty where `errors` says what is wrong already."""
    errors: tuple[PolicyError, ...] = ()
    """Why the files are no bundle, whatever is in them."""
    provenance: Provenance | None = None
    """None for a folder, of which nobody knows who changed it."""


class Unreadable(Exception):
    """Nothing could be read, so nothing is known of the bundle as it is now; the message has no secrets."""


class BundleReader(Protocol):
    """Reads a bundle as it is now, off the event loop and within bounds of time and size."""

    place: str
    """What is read, for people; without secrets."""
    atomic: bool
    """Whether one look sees one state, never one that is half written."""
    poll_s: float
    """Time (s) between two looks."""

    async def read(self) -> Bundle:
        """The bundle; the same object as last time where nothing changed.

        Raises:
            Unreadable: it cannot be read now.
        """

    async def close(self) -> None:
        """Let go of what is held between two looks."""
