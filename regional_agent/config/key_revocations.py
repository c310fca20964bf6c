"""The revoked API keys: watched in the store, combined with those known before, and stored on disk.

A revocation does not depend on the policy, the plan or a rollout. It ends only with the entry that lifts it: a removed,
older or undecodable value in the store changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import structlog

from adapters.store import keys
from adapters.store.config_store import ConfigStore
from penstock.policy.policy import Policy
from penstock.policy.revoked_keys import RevokedKeySet, without_keys
from regional_agent.config.followed_values import FollowedValues
from regional_agent.config.last_known_good import StateFile

log = structlog.get_logger()


class KeyRevocations:
    """The API keys that are revoked now, whatever the policy in force contains."""

    def __init__(self, store: ConfigStore, state_dir: Path, rng: Random, on_change: Callable[[], None]) -> None:
        """Create an empty list; `start` loads it.

        Args:
            state_dir: directory of the file with the last known entries.
            rng: adds jitter to reconnects.
            on_change: called when other keys than before are revoked.
        """
        self._on_change = on_change
        self._file = StateFile(state_dir / "revoked-keys", RevokedKeySet)
        self._values = FollowedValues(store, keys.REVOKED_KEYS, RevokedKeySet, self._on_published, rng)
        self.wait_read = self._values.wait_read
        self.stop = self._values.stop
        self._known = RevokedKeySet()
        self._digests: frozenset[str] = frozenset()

    def start(self) -> None:
        """Load the stored entries and start to follow the store."""
        stored = self._file.load()
        if stored is not None:
            self._use(stored)
        self._values.start()

    def applied_to(self, policy: Policy) -> Policy:
        """Return the policy without the revoked keys; the policy itself if no key is revoked."""
        return without_keys(policy, self._digests) if self._digests else policy

    def status(self) -> dict[str, Any]:
        """Return the number of revoked keys and the time (Unix time, s) of the last change, for the status page."""
        return {"count": len(self._digests), "changed_at": self._known.changed_at}

    def _on_published(self, _: str, published: RevokedKeySet, __: bytes) -> None:
        known = self._known
        self._use(published)
        if self._known is not known:
            self._values.save(self._file.save(self._known))

    def _use(self, others: RevokedKeySet) -> None:
        self._known = self._known.merged(others.keys)
        digests = frozenset(entry.digest for entry in self._known.revoked)
        if digests != self._digests:
            added, lifted = len(digests - self._digests), len(self._digests - digests)
            self._digests = digests
            log.warning("revoked keys changed", revoked=added, lifted=lifted, count=len(digests))
            self._on_change()
