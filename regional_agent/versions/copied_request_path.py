"""The request path of copies for a new version: no queue, no other region, and no trace in what concerns tenants.

A copy is read, routed and sent as the request that it was made of, by parts that differ from those of requests only in
what they leave out. Its results are evidence, and its GPU time is overhead of the fleet.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final, NamedTuple

import structlog

from penstock.accounts.account import Account
from penstock.meters.demand_meter import DemandMeter
from penstock.meters.request_tally import RequestTally
from penstock.policy.kinds.models import ModelVersions
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.policy.model_versions import old_version, rollout_of
from penstock.policy.policy import Policy
from penstock.routes.classify import RequestFields
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.proxy.exchange_start import start_exchange
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.authorization import Sender
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.model_name import replace_model
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.burst_targets import BurstTargets
from regional_agent.routing.queue_entry import OnTarget, QueueEntry
from regional_agent.routing.router import Router
from regional_agent.services.service import RoutedService

_NO_ROOM: Final = frozenset({Reason.SATURATED.value, Reason.NONE_READY.value})
"""Reasons for which a copy did not run, which is no fault of the new version."""

log = structlog.get_logger()


class CopyReader(ClientRequestReader):
    """Creates the contexts of copies. They are no demand, and have the new version, or the old one to compare with."""

    def __init__(self, reader: ClientRequestReader, *, of_new: bool) -> None:
        super().__init__(reader.authorization, reader._expectations, reader.objects, DemandMeter(0.0), reader._rng)
        self._of_new = of_new

    def _drawn_version(
        self, policy: Policy, versions: ModelVersions, tenant: str, request: Request, fields: RequestFields
    ) -> str:
        rollout = rollout_of(policy, fields.model)
        if rollout is None:
            return fields.model
        return rollout.to if self._of_new else old_version(versions, rollout)


class CopyRouter(Router):
    """Selects the targets of copies, which never wait."""

    def __init__(self, router: Router, reader: CopyReader) -> None:
        super().__init__(router._config, reader, router.local, router._peers, router._rng, router.batch.sizes)
        self.burst = BurstTargets(router.local, may_pay=False)

    def wait(self, context: RequestContext, size_bytes: int, on_target: OnTarget, now: float) -> QueueEntry | Refusal:
        """Refuse: a copy uses spare capacity only."""
        return Refusal(Reason.SATURATED, "a copy does not wait")


class CopyRecorder(OutcomeRecorder):
    """Records the copies of an agent as overhead, and those of the new version as evidence."""

    def __init__(self, recorder: OutcomeRecorder, *, of_new: bool) -> None:
        super().__init__(recorder._region, recorder.metrics, RequestTally(), None)
        self._of_new = of_new
        self.versions = recorder.versions
        self._of_agent = recorder

    def record(self, context: RequestContext, attempt: Attempt | None, account: Account) -> None:
        """Record a copy that ended."""
        try:
            if isinstance(attempt, LocalAttempt):
                self._charge_fleet(context, attempt, account.ended_at, account)
            if self._of_new and account.reason not in _NO_ROOM:
                self.versions.ended(context, account, account.ended_at - context.received_at, is_copy=True)
        except Exception:
            log.exception("recording a copy failed", model=context.model)

    def attempt_lost(self, context: RequestContext, attempt: Attempt, now: float) -> None:
        """Count an attempt that does not serve its copy, at `now` (s)."""
        if isinstance(attempt, LocalAttempt):
            self._charge_fleet(context, attempt, now, None)

    def _charge_fleet(
        self, context: RequestContext, attempt: LocalAttempt, now: float, account: Account | None
    ) -> None:
        self._usage.overhead(attempt.estimate, now - attempt.since, attempt.mean_streams())
        ledger = self._of_agent.ledger
        if ledger is not None:
            ledger.copied(context, attempt, account, now)


class CopyPath(NamedTuple):
    """The request path of the copies of one version."""

    reader: CopyReader
    proxy: Proxy

    @classmethod
    def beside(cls, proxy: Proxy, rng: Random, *, of_new: bool) -> CopyPath:
        """Return the path beside that of clients' requests, for the new version or the old one."""
        reader = CopyReader(proxy.router.requests, of_new=of_new)
        recorder = CopyRecorder(proxy.recorder, of_new=of_new)
        router = CopyRouter(proxy.router, reader)
        return cls(reader, Proxy(router, proxy.pools, recorder, proxy.limits, via=proxy.via, rng=rng))


class CopyService(RoutedService):
    """Runs one copy."""

    def __init__(self, path: CopyPath, config: ActiveConfig, sender: Sender, name: str, max_use: float) -> None:
        """Create the service for a copy of a request of `sender`.

        Args:
            name: the model that the client requested.
            max_use: part (0-1) of the version's slots below which the copy may start.
        """
        super().__init__(path.proxy, config, path.reader.objects)
        self._reader = path.reader
        self._sender = sender
        self._name = name
        self._max_use = max_use

    def _handle(self, request: Request, connection: ClientConnection, refusal: Refusal | None) -> Handler | None:
        """Proxy the copy, or drop it."""
        context = None if refusal is not None else self._copied(request)
        if isinstance(context, RequestContext):
            return start_exchange(self._proxy, connection, context)
        connection.respond(503, [], b"")
        return None

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Accept the body, whose size the sample limits."""
        return self.refuse_route(request) or AcceptedHead(self._sender.tenant.name)

    def _copied(self, request: Request) -> RequestContext | None:
        policy, proxy = self._config.policy, self._proxy
        # The body has the name of the version that serves the request.
        if policy is None or replace_model(request, self._name) is None:
            return None
        now = proxy.clock()
        context = self._reader.read(policy, request, self._sender, now, inf, proxy.limits.request_timeout_s)
        region = proxy.router.region
        if not isinstance(context, RequestContext) or region not in context.residency.permitted.regions:
            return None
        context.has_credential = False
        context.keep_in(region, None)
        # What the copy uses and breaks is not attributed to the tenant.
        context.estimate.tenant = ""
        context.priority, context.is_batch = BATCH_PRIORITY, True
        context.max_use = min(context.max_use, self._max_use)
        context.may_fall_back = False
        return context
