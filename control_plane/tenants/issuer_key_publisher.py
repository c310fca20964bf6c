"""Fetches the keys of the policy's identity providers, and publishes them to agents when they change.

Only the leader fetches. The keys that were fetched last stay published while a provider is unavailable, or answers
without a usable key: an empty set is more often an outage than the removal of all keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from random import Random

import httpx
import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from adapters.store.informer import Mirror
from control_plane.auth.bounded_fetch import SeparateFetches, fetch_changed
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.policy import Policy
from penstock.tenancy.tokens.issuer_keys import IssuerKeySet, other_name, publishable_keys

TICK_S = 1.0
"""Interval (s) at which it is checked which keys are due."""

APART_S = 0.2
"""Minimum time (s) between two checks, when agents ask for keys."""

ASKED_APART_S = 2.0
"""Minimum time (s) between two fetches of one issuer's keys that agents ask for."""

_log = structlog.get_logger(__name__)


class _Fetched(msgspec.Struct):
    """The last fetch of the keys of one issuer."""

    tried_at: float = float("-inf")
    """Times (s, monotonic) of the last try and of the last success."""
    fetched_at: float = float("-inf")
    asked_at: float = float("-inf")
    """Time (s, monotonic) of the last try that agents asked for."""
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
        self.fetches = SeparateFetches()
        """Fetches by the place of the issuer."""
        self._policies = policies
        self._epoch = epoch
        self._clock = clock
        self._on_ages = on_ages
        self._fetched: dict[tuple[str, str], _Fetched] = {}
        """By name of the issuer and URL of its key set: issuers with one URL may have different intervals."""
        self._asked: set[str] = set()
        self._published = Mirror(store, keys.ISSUERS, IssuerKeySet, rng=rng)
        self.informer = self._published.informer

    def ask(self, names: Iterable[str]) -> None:
        """Fetch the keys of issuers with the next tick: an agent has received a token with an unknown key. Once in
        ASKED_APART_S, whatever tokens clients send."""
        if self._epoch() is not None:
            self._asked.update(names)

    async def tick(self) -> None:
        """Start to fetch the keys that are due, each of which is published if it has changed; no effect without
        leadership."""
        if self._epoch() is None or not self.informer.synced:
            self._on_ages({})
            self._asked.clear()
            return
        issuers = self._issuers()
        present = {_place_of(issuer) for issuer in issuers.values()}
        self._fetched = {place: fetched for place, fetched in self._fetched.items() if place in present}
        now = self._clock()
        for name, issuer in issuers.items():
            if not self.fetches.is_running(_place_of(issuer)) and self._is_due(issuer, now):
                self.fetches.start(_place_of(issuer), self._refresh(name, issuer))
        self._asked.clear()
        self._on_ages({name: now - self._of(issuer).fetched_at for name, issuer in issuers.items()})

    async def close(self) -> None:
        """Cancel all fetches, and close the connections to the providers."""
        await self.fetches.close()
        if self._http is not None:
            await self._http.aclose()

    def _issuers(self) -> dict[str, Issuer]:
        """The issuers of all policies, by the names under which their keys are published."""
        found: dict[str, Issuer] = {}
        for policy in self._policies():
            for name, issuer in {} if policy is None else (policy.issuers or {}).items():
                if found.setdefault(name, issuer).jwks_url != issuer.jwks_url:
                    found[other_name(name, issuer.jwks_url)] = issuer
        return found

    def _is_due(self, issuer: Issuer, now: float) -> bool:
        fetched = self._of(issuer)
        if issuer.name in self._asked and now - fetched.asked_at >= ASKED_APART_S:
            fetched.asked_at = now
            return True
        return now - fetched.tried_at >= issuer.refresh_s

    def _of(self, issuer: Issuer) -> _Fetched:
        return self._fetched.setdefault(_place_of(issuer), _Fetched())

    async def _refresh(self, name: str, issuer: Issuer) -> None:
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
        await self._publish(name, issuer, fetched.keys)

    async def _publish(self, name: str, issuer: Issuer, found: tuple[dict[str, str], ...]) -> None:
        seen, epoch = self._published.seen(name), self._epoch()
        if epoch is None or (seen and (seen.value.keys, seen.value.jwks_url) == (found, issuer.jwks_url)):
            return
        key_set = IssuerKeySet(issuer.name, issuer.jwks_url, found, time.time())
        try:
            written = await self._store.commit(
                (SameKey(keys.LEADER, epoch),), (Put(keys.issuer(name), encode(key_set)),)
            )
        except StoreError as error:
            _log.warning("keys of an issuer not published", issuer=issuer.name, reason=str(error))
            return
        if written.succeeded:
            _log.info("keys of an issuer published", issuer=issuer.name, kids=[each.get("kid", "") for each in found])


def _place_of(issuer: Issuer) -> tuple[str, str]:
    return issuer.name, issuer.jwks_url
