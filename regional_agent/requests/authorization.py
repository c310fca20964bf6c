"""Steps 1, 3, 4 and 5 of the request path: tenant, location of the client, residency mask and budgets.

Under one policy the first three depend only on the client's key and location, so the results are cached by key and
address: the next request of the same client needs one look-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from typing import Final

from msgspec.structs import replace

from adapters.access.login_failures import LoginFailures
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.pools.placement import WorkEstimate
from penstock.routing.decision import mask_at_origin, may_be_by_change, same_residency
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.budget_reservations import BudgetReservation, SenderBudgets
from penstock.tenancy.permissions import Patterns, permits_model, permits_name
from penstock.wire.route_context import RouteContext
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.requests.client_location import MAX_CACHED_CHAIN_BYTES, Locator
from regional_agent.requests.tenant_authentication import EXPIRED, Keyring, credential_of, is_failure
from regional_agent.requests.withdrawn import Withdrawn
from regional_agent.tenants.forwarded_principal import ForwardedPrincipals
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_budgets import TenantBudgets
from regional_agent.tenants.token_authentication import TokenAuthentication

MAX_CACHED_LOCATIONS: Final = 4096
"""Maximum number of cached (tenant, location) pairs."""

MAX_SENDERS: Final = 16_384
"""Maximum number of cached (key, address) pairs; the oldest entry is evicted first."""

MAX_SENDER_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of the Authorization headers of the cached senders: tokens have up to 8 KiB."""

MAX_FAILURES: Final = 200
"""Number of invalid keys and tokens from an address after which further ones are refused without a log line, and new
tokens without a verification."""

FAILURE_REFILL_S: Final = 0.1
"""Time (s) after which one failure is forgiven."""

NO_POLICY: Final = Refusal(Reason.NO_POLICY, "this agent has no policy yet", retry_after_s=MIN_RETRY_S)

Masks = dict[str, Mask | Refusal]
"""The residency masks of one tenant and location, by model, and the refusals of models that are not permitted."""

Place = tuple[str, str, str | None, str | None]
"""A tenant with its data class, and a location: its country and subdivision."""

SenderKey = tuple[bytes | None, bytes | None, bytes | None, str]
"""The cache key of a sender: Authorization, X-Forwarded-For, trusted location header, and peer address."""


class Sender:
    """The principal and location of a client, under one policy."""

    def __init__(self, principal: Principal, facts: RequestFacts, masks: Masks) -> None:
        """`masks` is shared by all senders of one tenant, location and list of permitted models."""
        self.principal = principal
        self.tenant = principal.tenant
        self.facts = facts
        self.masks = masks
        self.budgets: SenderBudgets | None = None
        """The budgets that limit the sender; None if there are none."""
        self.is_job = False
        """Whether the sender's requests are those of jobs, which are below all priorities."""


class Authorization:
    """What the policy in force permits the clients of one agent."""

    def __init__(
        self,
        region: str,
        config: ActiveConfig,
        locator: Locator,
        budgets: TenantBudgets,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create the authorization of requests that reach an agent of `region`.

        Args:
            region: the region of this agent.
            config: the policy in force.
            locator: finds the client's location.
            budgets: limits tenants and keys to their budgets.
            wall_clock: Unix time (s), by which API keys expire.
        """
        self._region = region
        self._wall_clock = wall_clock
        self._tenants = config.tenants
        self._config = config
        self._locator = locator
        self.budgets = budgets
        """Limits tenants and keys to their budgets."""
        self.location_header = self._locator.header
        self._policy: Policy | None = None
        """The policy under which all cached entries were computed."""
        self._before: Policy | None = None
        """The last policy with other rules of residency or entries; None if this agent has known none."""
        self._located_by = self._locator.generation
        """The generation of the GeoIP database that located the cached senders."""
        self._keyring: Keyring
        self._senders: dict[SenderKey, Sender] = {}
        self._sender_bytes = 0
        self._failures = LoginFailures(burst=MAX_FAILURES, refill_s=FAILURE_REFILL_S)
        self._issuers = config.issuers
        self._masks: dict[tuple[Place, Patterns], Masks] = {}
        self._residency: dict[Place, Mask | Refusal] = {}
        """The residency masks by tenant and location, for any model."""
        self._forwarded = ForwardedPrincipals(config.tenants)
        self._withdrawn = Withdrawn()
        """For requests that other regions forward."""

    def sender_of(self, policy: Policy, request: Request, peer_ip: str) -> Sender | Refusal:
        """Return the tenant and location of a client's request under `policy`, which is in force, or the refusal.

        Args:
            peer_ip: the address of the TCP peer.
        """
        if policy is not self._policy:
            self._switch_policy(policy)
        if self._locator.generation != self._located_by:
            self._located_by = self._locator.generation
            self._forget_senders()
        headers = request.by_name or request.index()
        location_header = headers.get(self.location_header)
        # A location header from an untrusted peer has no effect, so it is not part of the cache key.
        if location_header is not None and not self._locator.trusts(peer_ip):
            location_header = None
        authorization, route = headers.get(b"authorization"), request.route
        if request.upgrade or (route is not None and route.api_key_header):
            credential = credential_of(request)
            if isinstance(credential, Refusal):
                return credential
            authorization = credential
        key = (authorization, headers.get(b"x-forwarded-for"), location_header, peer_ip)
        sender = self._senders.get(key)
        if sender is None or request.repeats:
            return self._identify(request, key)
        principal, tenants = sender.principal, self._tenants
        if principal.version != tenants.version and not tenants.confirms(principal):
            self._evict(key)
            return self._identify(request, key)
        if principal.expires_at != inf and principal.expires_at <= self._wall_clock():
            return EXPIRED
        return sender

    def principal_of(self, request: Request, peer_ip: str = "", *, started: bool = False) -> Principal | Refusal:
        """Return the principal of a request by its key, or the refusal if the key is invalid.

        Args:
            peer_ip: the address of the TCP peer, if an invalid key counts as a failure of the client's address.
            started: whether the request started before, so that a key that has expired since is accepted.
        """
        policy = self._config.policy
        if policy is None:
            return NO_POLICY
        if policy is not self._policy:
            self._switch_policy(policy)
        credential = credential_of(request)
        if isinstance(credential, Refusal):
            return credential
        if peer_ip:
            return self._identify_client(request, credential, peer_ip)
        return self._keyring.identify(credential, started=started)

    def refuse_sender(self, request: Request, peer_ip: str) -> Refusal | None:
        """Return why the policy in force permits no request of a sender in this region; None if it permits some.

        Args:
            peer_ip: the address of the TCP peer.
        """
        principal = self.principal_of(request, started=True)
        if isinstance(principal, Refusal):
            return principal
        policy = self._policy
        assert policy is not None
        verdict = self.residency(policy, self._facts(principal.tenant, request, peer_ip))
        return verdict if isinstance(verdict, Refusal) else None

    def mask(self, policy: Policy, model: str, principal: Principal, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for `model`. Cached while the policy is in force.

        A model that the principal may not use is refused as one that does not exist.
        """
        if policy is not self._policy:
            self._switch_policy(policy)
        masks = self._masks_of(principal, facts)
        mask = masks.get(model)
        if mask is None:
            if model not in policy.models:
                return model_not_found(model)
            permitted = permits_model(policy, principal.models, model)
            mask = masks[model] = self.residency(policy, facts) if permitted else model_not_found(model)
        return mask

    def adapter_mask(self, policy: Policy, adapter: str, principal: Principal, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for an adapter, or its refusal if the principal may not use it.

        The base model needs no permission of its own.
        """
        if not permits_name(principal.models, adapter):
            return model_not_found(adapter)
        return self.residency(policy, facts)

    def mask_by_name(self, policy: Policy, name: str, principal: Principal, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for a model, an adapter, or versions of a model."""
        if name in policy.versions or (name not in policy.models and base_model_of(policy, name) is not None):
            return self.adapter_mask(policy, name, principal, facts)
        return self.mask(policy, name, principal, facts)

    def refuse_wider(self, policy: Policy, principal: Principal, facts: RequestFacts) -> Refusal | None:
        """Return the refusal of a token whose data class permits a region that the tenant's own class forbids."""
        own = principal.widest_data_class
        if not own or own == facts.data_class:
            return None
        widest = self.residency(policy, RequestFacts(facts.tenant, own, facts.location))
        narrow = self.residency(policy, facts)
        if isinstance(widest, Refusal) or isinstance(narrow, Refusal):
            return widest if isinstance(widest, Refusal) else None
        if narrow.permitted.regions <= widest.permitted.regions:
            return None
        return Refusal(
            Reason.RESIDENCY_DENIED, "the data class of the token permits regions that the one of its tenant forbids"
        )

    def residency(self, policy: Policy, facts: RequestFacts) -> Mask | Refusal:
        """Return the residency mask of a request for any model. Cached while the policy is in force.

        Args:
            facts: the facts of the request, with the data class that `policy` assigns to the tenant.
        """
        if policy is not self._policy:
            self._switch_policy(policy)
        key = _place(facts)
        verdict = self._residency.get(key)
        if verdict is None:
            if len(self._residency) >= MAX_CACHED_LOCATIONS:
                self._residency.clear()
            verdict, before = mask_at_origin(policy, self._region, facts), self._before
            if isinstance(verdict, Refusal) and before is not None:
                verdict = replace(verdict, may_be_by_change=may_be_by_change(policy, before, self._region, facts))
            self._residency[key] = verdict
        return verdict

    def accept_head(self, request: Request, peer_ip: str, now: float) -> AcceptedHead | Refusal:
        """Accept a request with a large body by its head. It counts as a request of its sender from here on.

        `reserve` takes the reservation over; if the request ends before that, `release_head` gives it back.

        Args:
            peer_ip: the address of the TCP peer. An invalid key counts as a failure of the client's address.
            now: monotonic (s).
        """
        principal = self.principal_of(request, peer_ip)
        if isinstance(principal, Refusal):
            return principal
        if principal.routes is not None:
            refusal = refuse_route(principal, request)
            if refusal is not None:
                return refusal
        tenant = principal.tenant
        budgets = self.budgets.of(tenant, principal.budget_key, principal.budgets)
        if budgets is None:
            return AcceptedHead(tenant.name)
        reserved = self.budgets.reserve_early(budgets, now, may_wait=request.may_wait)
        return reserved if isinstance(reserved, Refusal) else AcceptedHead(tenant.name, reserved)

    def release_head(self, head: AcceptedHead, now: float) -> None:
        """Give back what an accepted head still holds. A second call does nothing."""
        reservation, head.reservation = head.reservation, None
        if reservation is not None:
            reservation.give_back(now)

    def reserve(
        self, budgets: SenderBudgets, policy: Policy, estimate: WorkEstimate, request: Request, now: float
    ) -> BudgetReservation | Refusal:
        """Reserve what a request needs from the budgets of its sender, instead of what its head reserved."""
        head = request.accepted_head
        held = None if head is None else head.reservation
        reserved = self.budgets.reserve(budgets, policy, estimate, now, held, may_wait=request.may_wait)
        if head is not None and isinstance(reserved, BudgetReservation):
            head.reservation = None
        return reserved

    def forwarded_principal(self, policy: Policy, context: RouteContext) -> Principal | Refusal:
        """Return the principal of a request that another region forwarded, or the refusal of its key or tenant."""
        return self.withdrawn(policy).refuse(context) or self._forwarded.find(policy, context)

    def stored_sender(self, policy: Policy, facts: RequestFacts, key_id: str, models: Patterns) -> Sender | Refusal:
        """Return the sender of a request that was stored earlier, or the refusal of its key, tenant or data class.

        Args:
            facts: as they were when the sender was authenticated.
            key_id: identifier of the API key; empty without one.
            models: the restrictions of the key then, which apply besides those of the tenant.
        """
        name, data_class = facts.tenant, facts.data_class
        stated = RouteContext(
            "", self._region, self._region, name, data_class, facts.location, "", (), "", 0.0, 0.0, key_id=key_id
        )
        known = self.forwarded_principal(policy, stated)
        if isinstance(known, Refusal):
            return known
        if known.tenant.data_class != data_class:
            own = self.residency(policy, RequestFacts(name, known.tenant.data_class, facts.location))
            stored = self.residency(policy, facts)
            if isinstance(own, Refusal):
                return own
            if isinstance(stored, Refusal):
                return stored
            if not stored.permitted.regions <= own.permitted.regions:
                detail = "the data class of the tenant has changed, and forbids regions that were permitted"
                return Refusal(Reason.RESIDENCY_DENIED, detail)
        principal = Principal(known.tenant, key_id, models=(*known.models, *models))
        found = self._tenants.find_id(key_id)
        if found is not None:
            principal.budgets, principal.budget_key = found.key.budgets, found.key.budget_key
        sender = Sender(principal, facts, self._masks_of(principal, facts))
        sender.budgets = self.budgets.of(principal.tenant, principal.budget_key, principal.budgets)
        sender.is_job = True
        return sender

    def withdrawn(self, policy: Policy) -> Withdrawn:
        """Return what earlier policies contained and `policy`, which is in force, does not."""
        if policy is not self._policy:
            self._switch_policy(policy)
        return self._withdrawn

    def _switch_policy(self, policy: Policy) -> None:
        """Switch to another policy and clear all caches."""
        clock, index = self._wall_clock, self._tenants
        if self._policy is not None and not same_residency(self._policy, policy):
            self._before = self._policy
        tokens = TokenAuthentication(policy, index, self._issuers, clock) if policy.issuers else None
        self._policy, self._keyring = policy, Keyring(policy, index, clock, tokens)
        self._withdrawn.use(policy)
        self._forget_senders()
        self._masks.clear()
        self._residency.clear()

    def _identify(self, request: Request, key: SenderKey) -> Sender | Refusal:
        """Identify and locate a client. Cached, unless a header is repeated or the proxy chain is unusually long."""
        authorization, forwarded_for, location_header, peer_ip = key
        principal = self._identify_client(request, authorization, peer_ip)
        if isinstance(principal, Refusal):
            return principal
        facts = self._facts(principal.tenant, request, peer_ip)
        policy = self._policy
        assert policy is not None
        wider = self.refuse_wider(policy, principal, facts)
        if wider is not None:
            return wider
        sender = Sender(principal, facts, self._masks_of(principal, facts))
        sender.budgets = self.budgets.of(principal.tenant, principal.budget_key, principal.budgets)
        if not request.repeats and len(forwarded_for or b"") + len(location_header or b"") <= MAX_CACHED_CHAIN_BYTES:
            size_bytes = len(authorization or b"")
            while self._senders and (
                len(self._senders) >= MAX_SENDERS or self._sender_bytes + size_bytes > MAX_SENDER_BYTES
            ):
                self._evict(next(iter(self._senders)))
            if key not in self._senders:
                self._sender_bytes += size_bytes
            self._senders[key] = sender
        return sender

    def _identify_client(self, request: Request, authorization: bytes | None, peer_ip: str) -> Principal | Refusal:
        """Identify the principal of a credential. The failures of an address are limited; valid keys never are."""
        if authorization is None:
            return self._keyring.identify(None)
        failures = self._failures
        wait_s = failures.wait_s(self._address(request, peer_ip)) if len(failures) else 0
        principal = self._keyring.identify(authorization, verify=not wait_s)
        if is_failure(principal):
            failures.note(self._address(request, peer_ip))
            if wait_s:
                detail = "too many invalid keys or tokens came from this address"
                return Refusal(Reason.TOO_MANY_FAILURES, detail, retry_after_s=float(wait_s))
        return principal

    def _address(self, request: Request, peer_ip: str) -> str:
        address = self._locator.client_address(peer_ip, request.every(b"x-forwarded-for"))
        return peer_ip if address is None else str(address)

    def _evict(self, key: SenderKey) -> None:
        del self._senders[key]
        self._sender_bytes -= len(key[0] or b"")

    def _forget_senders(self) -> None:
        self._senders.clear()
        self._sender_bytes = 0

    def _facts(self, tenant: Tenant, request: Request, peer_ip: str) -> RequestFacts:
        """Locate the client of a request."""
        location_headers = request.every(self.location_header)
        if location_headers and not self._locator.trusts(peer_ip):
            location_headers = []
        location = self._locator.locate_client(peer_ip, request.every(b"x-forwarded-for"), location_headers)
        return RequestFacts(tenant.name, tenant.data_class, location)

    def _masks_of(self, principal: Principal, facts: RequestFacts) -> Masks:
        key = (_place(facts), principal.models)
        masks = self._masks.get(key)
        if masks is None:
            if len(self._masks) >= MAX_CACHED_LOCATIONS:
                self._masks.clear()
            masks = self._masks[key] = {}
        return masks


def model_not_found(name: str) -> Refusal:
    """The refusal of a model that does not exist, or that the client may not use: a refusal reveals no names."""
    return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {name!r} is served here")


def refuse_route(principal: Principal, request: Request) -> Refusal | None:
    """Return why a principal may not use the route of a request; None if it may."""
    route = request.route
    if route is None or principal.permits_route(route.name):
        return None
    return Refusal(Reason.ROUTE_NOT_PERMITTED, f"tenant {principal.tenant.name} may not use the route {route.name}")


def _place(facts: RequestFacts) -> Place:
    return facts.tenant, facts.data_class, facts.location.country, facts.location.subdivision
