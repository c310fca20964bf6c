"""Purges of the result cache: by model, or of everything.

A purge gives the keys of a model's responses another part, so that no earlier response is found again. It needs
neither a search in Redis nor clocks that agree.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock.policy.kinds.result_cache import MAX_AGE_S

EVERY_MODEL: Final = "*"

MAX_PURGES: Final = 1024
"""Maximum number of models with a purge; beyond it, the oldest purges become one of every model."""

FORGET_AFTER_S: Final = MAX_AGE_S + 86_400
"""Age (s) after which a purge is removed: all responses that it concerned have expired, and clocks may differ."""


class CachePurge(msgspec.Struct, frozen=True):
    """The newest purge of one model."""

    model: str
    """Name of the model, model version or adapter; EVERY_MODEL for all."""
    id: str
    """Unique among all purges."""
    at: float
    """Unix time (s)."""
    author: str
    reason: str


class CachePurges(msgspec.Struct, frozen=True):
    """The newest purge of each model, by time. The stored value."""

    purges: tuple[CachePurge, ...] = ()

    def newest(self, *models: str) -> str:
        """Return a text that changes with each purge that concerns one of `models` (a model and its adapter)."""
        return " ".join(purge.id for purge in self.purges if purge.model == EVERY_MODEL or purge.model in models)

    def with_purge(self, purge: CachePurge) -> CachePurges:
        """Return the purges with a further one, in place of those that it includes and without those long past."""
        if purge.model == EVERY_MODEL:
            return CachePurges((purge,))
        kept = [each for each in self.purges if each.model != purge.model and each.at > purge.at - FORGET_AFTER_S]
        if len(kept) >= MAX_PURGES:
            return CachePurges((msgspec.structs.replace(purge, model=EVERY_MODEL),))
        return CachePurges((*kept, purge))
