"""The service for a request that several clients share: the request path of clients, with the sender of the first."""

from __future__ import annotations

from penstock.cost.gpu_time import estimated_gpu_s
from penstock.routing.reasons import Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.proxy.proxy import Proxy
from regional_agent.requests.authorization import Sender
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.services.service import RoutedService


class SharedRunService(RoutedService):
    """Runs the requests of one sender, with the priority of its tenant."""

    def __init__(self, reader: ClientRequestReader, proxy: Proxy, config: ActiveConfig, sender: Sender) -> None:
        """Create the service for requests of `sender`, which was authenticated under the policy in force."""
        super().__init__(proxy, config, reader.objects)
        self._reader = reader
        self._sender = sender
        self.gpu_s = 0.0
        """Estimated GPU seconds of the last request."""

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Accept a body, whose memory counts for the tenant."""
        return self.refuse_route(request) or AcceptedHead(self._sender.tenant.name)

    def _context(self, request: Request) -> RequestContext | Refusal:
        context = self._read_as(self._sender, request, self._reader)
        if isinstance(context, RequestContext):
            self.gpu_s = estimated_gpu_s(context.policy.models.get(context.model), context.estimate.work)
        return context
