"""The paths of the job APIs: which request is for which API, who may send it, and which store it uses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec
import structlog

from adapters.object_store.object_store import StoreUnavailable
from penstock.jobs import store_paths
from penstock.jobs.batches.request_line import LineChecks
from penstock.jobs.job_records import JobSender
from penstock.jobs.store_paths import UploadPaths
from penstock.jobs.store_selection import select_store
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.residency import Mask
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import AcceptedHead, Request
from regional_agent.http.request_handler import Handler
from regional_agent.jobs.api.api_responses import Answer, EventStream, Refuse, WaitingResponse, json_response
from regional_agent.jobs.api.batches_api import BatchesApi
from regional_agent.jobs.api.files_api import FilesApi
from regional_agent.jobs.api.job_events import OpenStreams, View, job_events
from regional_agent.jobs.api.job_paths import (
    MESSAGE_BATCHES,
    OF_ANTHROPIC,
    OF_UPLOADS,
    Operation,
    is_form,
    is_large_json,
    is_path,
    operation_of,
)
from regional_agent.jobs.api.jobs_api import JobsApi, wants_async
from regional_agent.jobs.api.merged_lists import ListedStore, MergedList
from regional_agent.jobs.api.message_batches_api import MessageBatchesApi
from regional_agent.jobs.api.page_query import page_of
from regional_agent.jobs.api.uploads_api import UploadsApi
from regional_agent.jobs.api.webhook_api import WebhookApi
from regional_agent.jobs.job_worker import JobWorker
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse, OpenStore
from regional_agent.jobs.uploads.completions import Completions
from regional_agent.jobs.uploads.form_upload import FormUpload
from regional_agent.jobs.uploads.input_writer import InputLimits
from regional_agent.jobs.uploads.line_checks import line_checks
from regional_agent.jobs.uploads.received_files import ReceivedInput
from regional_agent.jobs.uploads.upload_form import BadForm
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys
from regional_agent.requests.authorization import Authorization, Sender, refuse_route
from regional_agent.services.model_list import anthropic_route

log = structlog.get_logger()

LISTS: Final = frozenset({"files", "batches", "jobs", "message batches"})
"""Operations that return a list."""

MAX_UPLOADS: Final = 16
"""Uploads at a time; each holds some parts of its file in memory."""

MAX_UPLOADS_OF_TENANT: Final = 4
"""Uploads of one tenant at a time."""


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
        self._uploads: set[FormUpload] = set()
        self.completions = Completions()
        self._streams = OpenStreams()

    def serves(self, request: Request) -> bool:
        """Whether a request, which has no route, is for a job API that this region offers."""
        return is_path(request.path) and self._stores.store is not None

    def defers(self, request: Request) -> bool:
        """Whether a request of a route is accepted now and answered later."""
        return wants_async(request) and not request.upgrade and self._stores.store is not None

    def submit(self, request: Request, connection: ClientConnection, refuse: Refuse) -> Handler | Refusal:
        """Accept a request for which `defers` is true."""
        sender: Sender | Refusal = self._sender(request, connection.peer_ip)
        if not isinstance(sender, Refusal) and sender.principal.routes is not None:
            sender = refuse_route(sender.principal, request) or sender
        if isinstance(sender, Refusal):
            return sender
        return self._serve(request, connection, refuse, sender, Operation("submit", ""))

    def reads_whole(self, request: Request) -> bool:
        """Whether a request that this API serves has a large JSON body; an uploaded file is read as it arrives."""
        return is_large_json(request)

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Check the sender of a request for which `serves` is true while its body arrives."""
        sender = self._sender(request, peer_ip)
        return sender if isinstance(sender, Refusal) else None

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | Refusal:
        """Accept a request with a large body by its head."""
        sender = self._sender(request, peer_ip)
        if isinstance(sender, Refusal):
            return sender
        if not is_large_json(request) and not is_form(request):
            return Refusal(Reason.BODY_TOO_LARGE, "the body is too large for this path")
        return AcceptedHead(sender.principal.tenant.name)

    def handle(self, request: Request, connection: ClientConnection, refuse: Refuse) -> Handler | Refusal:
        """Serve a request for which `serves` is true."""
        sender = self._sender(request, connection.peer_ip)
        if isinstance(sender, Refusal):
            return sender
        found = operation_of(request)
        return found if isinstance(found, Refusal) else self._serve(request, connection, refuse, sender, found)

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
        tenant = sender.principal.tenant.name
        limits = InputLimits(tenant, store, line_checks(policy, self._authorization, sender))
        if operation.name in OF_UPLOADS or operation.name == "upload":
            return self._upload(request, connection, refuse, opened, limits, operation)
        stores = [
            opened,
            *(each for each in self._stores.inherited() if each.document.readers <= mask.permitted.regions),
        ]
        holder = partial(_holder, operation.item, tenant, stores)
        facts = sender.facts
        job_sender = JobSender(tenant, facts.data_class, sender.principal.key, facts.location, sender.principal.models)
        if operation.name == "events":
            if (refusal := self._streams.refuse(tenant)) is not None:
                return refusal
            find = partial(self._view, operation.item, holder, job_sender, limits.checks)
            is_permitted = partial(self._is_permitted, request, connection, tenant)
            stream = WaitingResponse(request, connection, refuse, self._events(operation.item, find, is_permitted))
            self._streams.add(tenant, stream)
            return stream
        if operation.name in LISTS:
            answer = self._list(operation.name, request, stores, job_sender, limits.checks)
        else:
            answer = self._answer(operation, request, holder, job_sender, limits.checks)
        error_format = ErrorFormat.ANTHROPIC if operation.name in OF_ANTHROPIC else ErrorFormat.OPENAI
        return WaitingResponse(request, connection, refuse, answer, error_format)

    def _upload(
        self,
        request: Request,
        connection: ClientConnection,
        refuse: Refuse,
        store: OpenStore,
        limits: InputLimits,
        operation: Operation,
    ) -> Handler | Refusal:
        """Serve the upload of a file, or a request for an upload in parts."""
        api = UploadsApi(store, limits, self.completions)
        joins = self.completions.has(UploadPaths(limits.tenant, operation.item))
        if operation.name in ("upload", "upload part", "complete upload") and not joins:
            self._uploads = {upload for upload in self._uploads if upload.is_active}
            running = [each.tenant for each in self._uploads] + [each.tenant for each in self.completions.running]
            if len(running) >= MAX_UPLOADS:
                return Refusal(Reason.STORE_UNAVAILABLE, "too many uploads run at once", retry_after_s=5.0)
            if running.count(limits.tenant) >= MAX_UPLOADS_OF_TENANT:
                message = f"{MAX_UPLOADS_OF_TENANT} uploads of the tenant run"
                return Refusal(Reason.SATURATED, message, retry_after_s=5.0)
        if not is_form(request):
            return WaitingResponse(request, connection, refuse, self._upload_answer(operation, request, api))
        try:
            is_part = operation.name == "upload part"
            receiver = api.receiver(operation.item) if is_part else ReceivedInput(store.files, limits)
            upload = FormUpload(request, connection, refuse, receiver)
        except BadForm as error:
            return Refusal(Reason.BAD_REQUEST, str(error))
        except ImportError as error:
            log.error("a package is missing; install penstock[jobs]", package=error.name)
            return Refusal(Reason.STORE_UNAVAILABLE, "the agent cannot receive files", retry_after_s=60.0)
        self._uploads.add(upload)
        return upload

    async def _upload_answer(self, operation: Operation, request: Request, api: UploadsApi) -> Answer:
        item, body = operation.item, bytes(request.body)
        if operation.name == "create upload":
            return await api.create(body)
        if operation.name in ("upload urls", "complete upload"):
            return await (api.urls if operation.name == "upload urls" else api.complete)(item, body)
        return await (api.cancel if operation.name == "cancel upload" else api.show)(item)

    async def _view(
        self, item: str, holder: Callable[[], Awaitable[OpenStore]], sender: JobSender, checks: LineChecks
    ) -> View:
        """Return what reads a job of any kind."""
        store, wake = await holder(), self._worker.wake
        if item.startswith(store_paths.MESSAGE_BATCH):
            return partial(MessageBatchesApi(store, sender, checks, wake).view, item)
        if item.startswith(store_paths.BATCH):
            return partial(self._batches(store, sender).view, item)
        return partial(JobsApi(store, sender, wake, self._worker.queue).view, item)

    def _batches(self, store: OpenStore, sender: JobSender) -> BatchesApi:
        return BatchesApi(store, sender, self._worker.wake, self._worker.expected_of_waiting)

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

    async def _events(self, item: str, find: Callable[[], Awaitable[View]], is_permitted: Callable[[], bool]) -> Answer:
        view = await find()
        return EventStream(job_events(await view(), view, partial(self._worker.wait, item), is_permitted))

    async def _list(
        self, name: str, request: Request, stores: list[OpenStore], sender: JobSender, checks: LineChecks
    ) -> Answer:
        """Return a page of a list over stores, that of the region first."""
        page, wake, queue = page_of(request), self._worker.wake, self._worker.queue
        apis: dict[str, Callable[[OpenStore], ListedStore]] = {
            "files": lambda store: FilesApi(store, sender.tenant).listed(page.purpose),
            "batches": lambda store: self._batches(store, sender).listed(),
            "jobs": lambda store: JobsApi(store, sender, wake, queue).listed(),
            "message batches": lambda store: MessageBatchesApi(store, sender, checks, wake).listed(),
        }
        found = MergedList([apis[name](store) for store in stores])
        await found.read(page)
        items = found.items
        ends = (
            {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": None, "last_id": None}
        )
        kind = {} if name in OF_ANTHROPIC else {"object": "list"}
        return json_response({**kind, "data": items, **ends, "has_more": found.more, **found.missing()})

    async def _answer(
        self,
        operation: Operation,
        request: Request,
        holder: Callable[[], Awaitable[OpenStore]],
        sender: JobSender,
        checks: LineChecks,
    ) -> Answer:
        name, item, wake, store = operation.name, operation.item, self._worker.wake, await holder()
        files, jobs = FilesApi(store, sender.tenant), JobsApi(store, sender, wake, self._worker.queue)
        batches, messages = self._batches(store, sender), MessageBatchesApi(store, sender, checks, wake)
        of_items: dict[str, Callable[[str], Awaitable[Answer]]] = {
            "file": files.show,
            "content": files.content,
            "urls": files.urls,
            "delete": files.delete,
            "batch": batches.show,
            "cancel": batches.cancel,
            "job": jobs.show,
            "result": jobs.result,
            "result urls": jobs.urls,
            "delete job": jobs.delete,
            "cancel job": jobs.cancel,
            "message batch": messages.show,
            "message results": messages.results,
            "delete messages": messages.delete,
            "cancel messages": messages.cancel,
        }
        if name in of_items:
            return await of_items[name](item)
        webhooks = WebhookApi(self._webhook_keys, store.document)
        if name == "webhook secret":
            if item == "secret":
                return webhooks.secret(sender.tenant)
            return Refusal(Reason.NOT_FOUND, f"nothing is served at {request.path.decode('latin-1')}")
        webhook = webhooks.url_of(request)
        if name == "submit":
            return await jobs.submit(request, webhook)
        create = messages.create if name == "create messages" else batches.create
        return await create(bytes(request.body), request.header(b"idempotency-key") or b"", webhook)

    def _sender(self, request: Request, peer_ip: str) -> Sender | Refusal:
        policy = self._config.policy
        assert policy is not None  # `serves` was true
        if not request.path.startswith(MESSAGE_BATCHES):
            return self._authorization.sender_of(policy, request, peer_ip)
        # The route determines the header of the API key. The request keeps none: its path is no route.
        request.route = anthropic_route(policy)
        try:
            return self._authorization.sender_of(policy, request, peer_ip)
        finally:
            request.route = None


async def _holder(item: str, tenant: str, stores: list[OpenStore]) -> OpenStore:
    """Return the store that has a file or job; the first one, that of the region, if none has.

    Raises StoreUnavailable if a store that may have it cannot be read.
    """
    failure: StoreUnavailable | None = None
    if len(stores) > 1 and store_paths.is_file_or_job(item):
        for store in stores:
            record = store_paths.record_of(tenant, item)
            try:
                if await store.files.storage.find_record(record, msgspec.Raw) is not None:
                    return store
            except StoreUnavailable as error:
                failure = error
    if failure is not None:
        raise failure
    return stores[0]
