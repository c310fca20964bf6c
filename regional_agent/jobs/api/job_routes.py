"""The paths of the job APIs: which request is for which API, who may send it, and which store it uses."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import unquote

import structlog

from penstock.jobs import store_paths
from penstock.jobs.job_records import JobSender
from penstock.jobs.store_selection import select_store
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.residency import Mask
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.jobs.api.api_responses import Answer, EventStream, Refuse, WaitingResponse
from regional_agent.jobs.api.batches_api import BatchesApi
from regional_agent.jobs.api.files_api import FilesApi
from regional_agent.jobs.api.job_events import OpenStreams, View, job_events
from regional_agent.jobs.api.jobs_api import JobsApi, wants_async
from regional_agent.jobs.api.message_batches_api import MessageBatchesApi
from regional_agent.jobs.api.page_query import page_of
from regional_agent.jobs.api.webhook_api import WebhookApi
from regional_agent.jobs.job_worker import JobWorker
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore
from regional_agent.jobs.uploads.file_upload import FileUpload, UploadLimits
from regional_agent.jobs.uploads.line_checks import line_checks
from regional_agent.jobs.uploads.upload_form import BadForm
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys
from regional_agent.requests.authorization import Authorization, Sender, refuse_route
from regional_agent.services.model_list import anthropic_route

FILES: Final = b"/v1/files"

log = structlog.get_logger()

MAX_UPLOADS: Final = 16
"""Uploads at a time; each holds some parts of its file in memory."""

MAX_UPLOADS_OF_TENANT: Final = 4
"""Uploads of one tenant at a time."""

_MESSAGE_BATCHES: Final = b"/v1/messages/batches"
_PREFIXES: Final = (FILES, b"/v1/batches", b"/v1/jobs", b"/v1/webhooks", _MESSAGE_BATCHES)
_PATH: Final = re.compile(
    rb"/v1/(files|batches|jobs|webhooks|messages/batches)(?:/([^/]{1,128})(?:/(content|cancel|result|results|events|urls))?)?"
)
_METHODS: Final[dict[tuple[bytes, bool, bytes], dict[bytes, str]]] = {
    (b"files", False, b""): {b"POST": "upload", b"GET": "files"},
    (b"files", True, b""): {b"GET": "file", b"DELETE": "delete"},
    (b"files", True, b"content"): {b"GET": "content", b"HEAD": "content"},
    (b"files", True, b"urls"): {b"GET": "urls"},
    (b"batches", False, b""): {b"POST": "create", b"GET": "batches"},
    (b"batches", True, b""): {b"GET": "batch"},
    (b"batches", True, b"cancel"): {b"POST": "cancel"},
    (b"jobs", False, b""): {b"GET": "jobs"},
    (b"jobs", True, b""): {b"GET": "job", b"DELETE": "delete job"},
    (b"jobs", True, b"result"): {b"GET": "result", b"HEAD": "result"},
    (b"jobs", True, b"urls"): {b"GET": "result urls"},
    (b"jobs", True, b"cancel"): {b"POST": "cancel job"},
    (b"jobs", True, b"events"): {b"GET": "events"},
    (b"webhooks", True, b""): {b"GET": "webhook secret"},
    (b"messages/batches", False, b""): {b"POST": "create messages", b"GET": "message batches"},
    (b"messages/batches", True, b""): {b"GET": "message batch", b"DELETE": "delete messages"},
    (b"messages/batches", True, b"cancel"): {b"POST": "cancel messages"},
    (b"messages/batches", True, b"results"): {b"GET": "message results", b"HEAD": "message results"},
}
"""Operations by collection, whether an item is named, action and method."""

_OF_ANTHROPIC: Final = frozenset(
    name for key, methods in _METHODS.items() if key[0] == b"messages/batches" for name in methods.values()
)


class Operation(NamedTuple):
    """What a request asks for."""

    name: str
    item: str
    """Identifier of the file or batch; empty for the collection."""


class JobRoutes:
    """Serves the job APIs to clients, where the policy in force has a job store for the region."""

    def __init__(
        self,
        stores: JobStoresInUse,
        config: ActiveConfig,
        authorization: Authorization,
        worker: JobWorker,
        webhook_keys: WebhookKeys,
    ) -> None:
        """Create the routes.

        Args:
            stores: the store of the region.
            config: the policy in force.
            authorization: identifies senders.
            worker: runs the batches that are created.
            webhook_keys: sign webhooks; none refuse requests that ask for a webhook.
        """
        self._webhook_keys = webhook_keys
        self._stores = stores
        self._config = config
        self._authorization = authorization
        self._worker = worker
        self._uploads: set[FileUpload] = set()
        self._streams = OpenStreams()

    def serves(self, request: Request) -> bool:
        """Whether a request, which has no route, is for a job API that this region offers."""
        path = request.path
        if not path.startswith(_PREFIXES):
            return False
        return self._stores.store is not None and _PATH.fullmatch(path) is not None

    def defers(self, request: Request) -> bool:
        """Whether a request of a route is accepted now and answered later."""
        return wants_async(request) and not request.upgrade and self._stores.store is not None

    def submit(self, request: Request, connection: ClientConnection, refuse: Refuse) -> Handler | None:
        """Accept a request for which `defers` is true."""
        sender: Sender | Refusal = self._sender(request, connection.peer_ip)
        if not isinstance(sender, Refusal) and sender.principal.routes is not None:
            sender = refuse_route(sender.principal, request) or sender
        if isinstance(sender, Refusal):
            connection.respond(*refuse(sender, request))
            return None
        handler = self._serve(request, connection, refuse, sender, Operation("submit", ""))
        if isinstance(handler, Refusal):
            connection.respond(*refuse(handler, request))
            return None
        return handler

    def reads_whole(self, request: Request) -> bool:
        """Whether a request that this API serves has a large JSON body; an uploaded file is read as it arrives."""
        return request.method == b"POST" and request.path == _MESSAGE_BATCHES

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Check the sender of a request for which `serves` is true while its body arrives."""
        sender = self._sender(request, peer_ip)
        return sender if isinstance(sender, Refusal) else None

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Accept a request with a large body by its head."""
        sender = self._sender(request, peer_ip)
        if isinstance(sender, Refusal):
            return sender
        if not self.reads_whole(request) and (request.method, request.path) != (b"POST", FILES):
            return Refusal(Reason.BODY_TOO_LARGE, "the body is too large for this path")
        return AcceptedHead(sender.principal.tenant.name)

    def handle(self, request: Request, connection: ClientConnection, refuse: Refuse) -> Handler | None:
        """Serve a request for which `serves` is true."""
        found = self._operation(request)
        sender = self._sender(request, connection.peer_ip)
        refusal = sender if isinstance(sender, Refusal) else found if isinstance(found, Refusal) else None
        if refusal is None:
            assert isinstance(sender, Sender)
            assert isinstance(found, Operation)
            handler = self._serve(request, connection, refuse, sender, found)
            if not isinstance(handler, Refusal):
                return handler
            refusal = handler
        connection.respond(*refuse(refusal, request))
        return None

    def _serve(
        self,
        request: Request,
        connection: ClientConnection,
        refuse: Refuse,
        sender: Sender,
        operation: Operation,
    ) -> Handler | Refusal:
        policy, opened = self._config.policy, self._stores.opened()
        assert policy is not None  # `serves` was true
        assert opened is not None
        mask = self._authorization.residency(policy, sender.facts)
        if not isinstance(mask, Mask):
            return mask
        store = select_store(policy, self._stores.region, mask.permitted.regions)
        if not isinstance(store, JobStore):
            return store
        files = opened.files
        tenant = sender.principal.tenant.name
        if operation.name == "upload":
            self._uploads = {upload for upload in self._uploads if upload.is_active}
            if len(self._uploads) >= MAX_UPLOADS:
                return Refusal(Reason.STORE_UNAVAILABLE, "too many uploads run at once", retry_after_s=5.0)
            if sum(upload.tenant == tenant for upload in self._uploads) >= MAX_UPLOADS_OF_TENANT:
                message = f"{MAX_UPLOADS_OF_TENANT} uploads of the tenant run"
                return Refusal(Reason.SATURATED, message, retry_after_s=5.0)
            limits = UploadLimits(tenant, store, line_checks(policy, self._authorization, sender))
            try:
                upload = FileUpload(request, connection, refuse, files, limits)
            except BadForm as error:
                return Refusal(Reason.BAD_REQUEST, str(error))
            except ImportError as error:
                log.error("a package is missing; install penstock[jobs]", package=error.name)
                return Refusal(Reason.STORE_UNAVAILABLE, "the agent cannot receive files", retry_after_s=60.0)
            self._uploads.add(upload)
            return upload
        facts, wake = sender.facts, self._worker.wake
        job_sender = JobSender(tenant, facts.data_class, sender.principal.key, facts.location, sender.principal.models)
        checks = line_checks(policy, self._authorization, sender)
        if operation.name in _OF_ANTHROPIC:
            messages = MessageBatchesApi(opened, job_sender, checks, wake)
            webhooks = WebhookApi(self._webhook_keys, opened.document)
            answer = self._message_answer(operation, request, messages, webhooks)
            return WaitingResponse(request, connection, refuse, answer, ErrorFormat.ANTHROPIC)
        if operation.name == "events":
            if (refusal := self._streams.refuse(tenant)) is not None:
                return refusal
            view = self._view(operation.item, opened, MessageBatchesApi(opened, job_sender, checks, wake))
            is_permitted = partial(self._is_permitted, request, connection, tenant)
            stream = WaitingResponse(request, connection, refuse, self._events(operation.item, view, is_permitted))
            self._streams.add(tenant, stream)
            return stream
        return WaitingResponse(request, connection, refuse, self._answer(operation, request, opened, job_sender))

    def _view(self, item: str, store: OpenStore, messages: MessageBatchesApi) -> View:
        """Return what reads a job of any kind."""
        sender, wake = messages.sender, self._worker.wake
        if item.startswith(store_paths.MESSAGE_BATCH):
            return partial(messages.view, item)
        if item.startswith(store_paths.BATCH):
            return partial(BatchesApi(store.batches, store.files, store.document, sender, wake).view, item)
        return partial(JobsApi(store, sender, wake).view, item)

    def _is_permitted(self, request: Request, connection: ClientConnection, tenant: str) -> bool:
        """Whether the policy in force still permits a stream of events, and the agent does not shut down."""
        if connection.listener.draining:
            return False
        policy, store = self._config.policy, self._stores.store
        sender = self._sender(request, connection.peer_ip)
        if isinstance(sender, Refusal) or sender.principal.tenant.name != tenant or policy is None or store is None:
            return False
        mask = self._authorization.residency(policy, sender.facts)
        if not isinstance(mask, Mask):
            return False
        return isinstance(select_store(policy, self._stores.region, mask.permitted.regions), JobStore)

    async def _events(self, item: str, view: View, is_permitted: Callable[[], bool]) -> Answer:
        return EventStream(job_events(await view(), view, partial(self._worker.wait, item), is_permitted))

    async def _message_answer(
        self, operation: Operation, request: Request, batches: MessageBatchesApi, webhooks: WebhookApi
    ) -> Answer:
        item = operation.item
        match operation.name:
            case "create messages":
                key = request.header(b"idempotency-key") or b""
                return await batches.create(bytes(request.body), key, webhooks.url_of(request))
            case "message batches":
                return await batches.list(page_of(request))
            case "message batch":
                return await batches.show(item)
            case "message results":
                return await batches.results(item)
            case "delete messages":
                return await batches.delete(item)
            case _:
                return await batches.cancel(item)

    async def _answer(self, operation: Operation, request: Request, store: OpenStore, sender: JobSender) -> Answer:
        item, wake = operation.item, self._worker.wake
        files = FilesApi(store, sender.tenant)
        batches = BatchesApi(store.batches, store.files, store.document, sender, wake)
        jobs = JobsApi(store, sender, wake)
        webhooks = WebhookApi(self._webhook_keys, store.document)
        waiting: Awaitable[Answer]
        match operation.name:
            case "submit":
                waiting = jobs.submit(request, webhooks.url_of(request))
            case "webhook secret":
                if item != "secret":
                    return Refusal(Reason.NOT_FOUND, f"nothing is served at {request.path.decode('latin-1')}")
                return webhooks.secret(sender.tenant)
            case "files":
                waiting = files.list(page_of(request))
            case "file":
                waiting = files.show(item)
            case "content":
                waiting = files.content(item)
            case "urls":
                waiting = files.urls(item)
            case "delete":
                waiting = files.delete(item)
            case "create":
                key = request.header(b"idempotency-key") or b""
                waiting = batches.create(bytes(request.body), key, webhooks.url_of(request))
            case "batches":
                waiting = batches.list(page_of(request))
            case "batch":
                waiting = batches.show(item)
            case "cancel":
                waiting = batches.cancel(item)
            case "jobs":
                waiting = jobs.list(page_of(request))
            case "job":
                waiting = jobs.show(item)
            case "result":
                waiting = jobs.result(item)
            case "result urls":
                waiting = jobs.urls(item)
            case "delete job":
                waiting = jobs.delete(item)
            case _:
                waiting = jobs.cancel(item)
        return await waiting

    def _sender(self, request: Request, peer_ip: str) -> Sender | Refusal:
        policy = self._config.policy
        assert policy is not None  # `serves` was true
        if not request.path.startswith(_MESSAGE_BATCHES):
            return self._authorization.sender_of(policy, request, peer_ip)
        # The route determines the header of the API key. The request keeps none: its path is no route.
        request.route = anthropic_route(policy)
        try:
            return self._authorization.sender_of(policy, request, peer_ip)
        finally:
            request.route = None

    def _operation(self, request: Request) -> Operation | Refusal:
        found = _PATH.fullmatch(request.path)
        assert found is not None
        methods = _METHODS.get((found[1], found[2] is not None, found[3] or b""))
        if methods is None:
            return Refusal(Reason.NOT_FOUND, f"nothing is served at {request.path.decode('latin-1')}")
        name = methods.get(request.method)
        if name is None:
            allow = tuple(sorted(method.decode() for method in methods))
            return Refusal(Reason.METHOD_NOT_ALLOWED, "the path has no such method", allow=allow)
        return Operation(name, unquote((found[2] or b"").decode("latin-1")))
