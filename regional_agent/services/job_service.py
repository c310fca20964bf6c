"""The service for the requests of jobs: the request path of clients, with a sender that was authenticated before."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.jobs.job_records import JobSender
from penstock.jobs.store_selection import select_store
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.routes.route import Route
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.ledger.held_files import HeldRecords
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.authorization import NO_POLICY, Sender
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.services.service import RoutedService

NO_STORE: Final = Refusal(
    Reason.NO_POLICY, "the policy has no job store for the region of the job", retry_after_s=MIN_RETRY_S
)
"""What jobs have not run waits for a policy that has the store again, such as after a rollback."""


class JobService(RoutedService):
    """Runs the requests of one sender of jobs, below all priorities."""

    def __init__(
        self,
        reader: ClientRequestReader,
        proxy: Proxy,
        config: ActiveConfig,
        region: str,
        sender: JobSender,
        deadline_at: float,
    ) -> None:
        """Create the service for a job of `sender`.

        Args:
            region: the region that accepted the job, in whose store it is.
            deadline_at: time (s, the clock of `proxy`) at which the job is to be complete.
        """
        super().__init__(proxy, config, reader.objects)
        self._reader = reader
        self._region = region
        self._job_sender = sender
        self._deadline_at = deadline_at
        ledger = proxy.recorder.ledger
        self.held_records = HeldRecords(None) if ledger is None else ledger.hold()
        """The records of the job's requests whose results are not in the store."""
        self._tenants = config.tenants
        self._policy: Policy | None = None
        self._version = -1
        self._sender: Sender | Refusal = NO_POLICY
        self._max_use = 1.0

    def sender(self) -> Sender | Refusal:
        """Return the sender under the policy in force, or why its jobs may not run here."""
        policy = self._config.policy
        if policy is None:
            return NO_POLICY
        if policy is not self._policy or self._tenants.version != self._version:
            self._policy, self._version = policy, self._tenants.version
            self._sender = self._authorize(policy)
        return self._sender

    def _authorize(self, policy: Policy) -> Sender | Refusal:
        if policy.job_store(self._region) is None:
            return NO_STORE
        authorization, stored = self._reader.authorization, self._job_sender
        facts = RequestFacts(stored.tenant, stored.data_class, stored.location)
        mask = authorization.residency(policy, facts)
        if not isinstance(mask, Mask):
            return mask
        store = select_store(policy, self._region, mask.permitted.regions)
        if isinstance(store, Refusal):
            return store
        self._max_use = store.max_use_percent / 100.0
        return authorization.stored_sender(policy, facts, stored.key_id, stored.models)

    def _handle(self, request: Request, connection: ClientConnection, refusal: Refusal | None) -> Handler | None:
        """Proxy a request of a route, or refuse it. Its objects are looked up first, as those of clients are."""
        route = request.route
        if refusal is None and route is not None and (route.object_id or route.previous_object or route.client_object):
            lookup = self._look_up(
                request, connection, self._job_sender.tenant, self._serve, lambda: self._regions(route)
            )
            if lookup is not None:
                return lookup
        return self._serve(request, connection, refusal)

    def _regions(self, route: Route) -> Collection[str]:
        """Return the other regions that may have the object of a request: those that may serve it."""
        sender, policy = self.sender(), self._config.policy
        if not isinstance(sender, Sender) or policy is None or not (route.object_parameter or route.continues_objects):
            return ()
        mask = self._reader.authorization.residency(policy, sender.facts)
        return () if isinstance(mask, Refusal) else mask.permitted.regions

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Accept a large body, whose memory counts for the tenant."""
        return self.refuse_route(request) or AcceptedHead(self._job_sender.tenant)

    def _context(self, request: Request) -> RequestContext | Refusal:
        sender = self.sender()
        if not isinstance(sender, Sender):
            return sender
        context = self._read_as(sender, request, self._reader)
        if isinstance(context, RequestContext):
            context.max_use = min(context.max_use, self._max_use)
            context.may_fall_back = False
            context.job_deadline_at = self._deadline_at
            context.held_records = self.held_records
        return context
