"""Fetches the keys of the policy's identity providers, and publishes them to agents when they change.

Only the leader fetches. The keys that were fetched last stay published while a provider is unavailable, or answers
without a usable key: an empty set is more often an outage than the removal of all keys.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from random import Random

import httpx
import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from adapters.store.mirror import Mirror
from control_plane.auth.bounded_fetch import fetch_changed
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.policy import Policy
from penstock.tenancy.tokens.issuer_keys import IssuerKeySet, publishable_keys

TICK_S = 1.0
"""Interval (s) at which it is checked which keys are due."""

_log = structlog.get_logger(__name__)


class _Fetched(msgspec.Struct):
    """The last fetch of the keys of one issuer."""

    tried_at: float = float("-inf")
    """Times (s, monotonic) of the last try and of the last success."""
    fetched_at: float = float("-inf")
    etag: str = ""
    keys: tuple[dict[str, str], ...] = ()
    problem: str = ""


class IssuerKeyPublisher:
    """Keeps the published keys of identity providers equal to those that the providers serve.

    Args:
        store: the fleet's configuration store.
        policies: returns the policy in force and the one that is rolled out, as far as they are known.
        epoch: returns the fencing epoch of this control plane while it leads, else None.
        clock: monotonic time (s).
        on_ages: called with the age (s) of the keys of each issuer; inf before the first fetch, and none at followers.
    """

    def __init__(
        self,
        store: ConfigStore,
        policies: Callable[[], Iterable[Policy | None]],
        epoch: Callable[[], int | None],
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_ages: Callable[[Mapping[str, float]], None] = lambda ages_s: None,
    ) -> None:
        self._store = store
        self._http: httpx.AsyncClient | None = None
        """Created with the first fetch, since most fleets have no issuer; follows no redirects."""
        self._policies = policies
        self._epoch = epoch
        self._clock = clock
        self._on_ages = on_ages
        self._fetched: dict[tuple[str, str], _Fetched] = {}
        """By name of the issuer and URL of its key set: issuers with one URL may have different intervals."""
        self._published = Mirror(store, keys.ISSUERS, IssuerKeySet, rng=rng)
        self.informer = self._published.informer

    async def tick(self) -> None:
        """Fetch the keys that are due, and publish those that have changed; no effect without leadership."""
        if self._epoch() is None or not self.informer.synced:
            self._on_ages({})
            return
        issuers = self._issuers()
        present = {_place_of(issuer) for issuer in issuers}
        self._fetched = {place: fetched for place, fetched in self._fetched.items() if place in present}
        now = self._clock()
        due = [issuer for issuer in issuers if now - self._of(issuer).tried_at >= issuer.refresh_s]
        # One provider that does not respond must not delay the keys of others.
        await asyncio.gather(*(self._refresh(issuer) for issuer in due))
        now = self._clock()
        self._on_ages({issuer.name: now - self._of(issuer).fetched_at for issuer in issuers})

    async def close(self) -> None:
        """Close the connections to the providers."""
        if self._http is not None:
            await self._http.aclose()

    def _issuers(self) -> list[Issuer]:
        """The issuers of all policies; of two with one name, that of the first."""
        found: dict[str, Issuer] = {}
        for policy in self._policies():
            for name, issuer in {} if policy is None else (policy.issuers or {}).items():
                found.setdefault(name, issuer)
        return list(found.values())

    def _of(self, issuer: Issuer) -> _Fetched:
        return self._fetched.setdefault(_place_of(issuer), _Fetched())

    async def _refresh(self, issuer: Issuer) -> None:
        fetched = self._of(issuer)
        fetched.tried_at = self._clock()
        try:
            self._http = self._http or httpx.AsyncClient()
            response = await fetch_changed(self._http, issuer.jwks_url, fetched.etag)
            if response.status == 200:
                fetched.keys, fetched.etag = publishable_keys(response.body), response.etag
            elif response.status != 304 or not fetched.keys:
                raise ValueError(f"HTTP status {response.status}")
        except ValueError as error:
            if fetched.problem != str(error):
                _log.warning("keys of an issuer not fetched", issuer=issuer.name, reason=str(error))
            fetched.problem = str(error)
            return
        fetched.fetched_at, fetched.problem = self._clock(), ""
        await self._publish(issuer, fetched.keys)

    async def _publish(self, issuer: Issuer, found: tuple[dict[str, str], ...]) -> None:
        seen, epoch = self._published.seen(issuer.name), self._epoch()
        if epoch is None or (seen and (seen.value.keys, seen.value.jwks_url) == (found, issuer.jwks_url)):
            return
        key_set = IssuerKeySet(issuer.name, issuer.jwks_url, found, time.time())
        try:
            written = await self._store.commit(
                (SameKey(keys.LEADER, epoch),), (Put(keys.issuer(issuer.name), encode(key_set)),)
            )
        except StoreError as error:
            _log.warning("keys of an issuer not published", issuer=issuer.name, reason=str(error))
            return
        if written.succeeded:
            _log.info("keys of an issuer published", issuer=issuer.name, kids=[each.get("kid", "") for each in found])


def _place_of(issuer: Issuer) -> tuple[str, str]:
    return issuer.name, issuer.jwks_url
