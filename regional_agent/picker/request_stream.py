"""One request at the endpoint picker, until it is authorized: its head, its body within the limits, its objects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import structlog

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routes.kserve_messages import InferMessages
from penstock.routing.reasons import Reason, Refusal
from regional_agent.endpoints.endpoint_pool import EndpointSubset
from regional_agent.http.body_limits import DISPLACED, NO_ROOM, HeadPostponed
from regional_agent.http.messages import Request
from regional_agent.picker import envoy_responses, grpc_requests, message_reading
from regional_agent.picker.conversation import Conversation, FromEnvoy, InvalidTransition, PickerParts, StreamState
from regional_agent.picker.picked_request import PickedRequest
from regional_agent.picker.processing_request import (
    BUFFERED,
    REQUEST_BODY,
    REQUEST_HEADERS,
    REQUEST_TRAILERS,
    RESPONSE_BODY,
    RESPONSE_HEADERS,
    RESPONSE_TRAILERS,
    ProcessingRequest,
)
from regional_agent.proxy.exchange_start import begin
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.route_fields import objects_of
from regional_agent.services.service import HEALTH_PATHS
from regional_agent.tenants.token_authentication import KEY_AWAITED

_S = StreamState
_BEFORE_TARGET: Final = frozenset({_S.LOOKUP, _S.SELECTING, _S.QUEUED})
_WITH_TARGET: Final = frozenset({_S.PICKED, _S.RESPONDING})

MAX_SMALL_BYTES: Final = 64 * 1024
"""Maximum size of a body that is expected in one message with its head: the head is checked with it, not before."""

_SHUTTING_DOWN: Final = Refusal(
    Reason.SHUTTING_DOWN,
    "the agent stops before the body of the request has arrived",
    retry_after_s=MIN_RETRY_S,
)

_CONVERTED: Final = Refusal(Reason.NOT_OFFERED, "such requests go to the agent's own listener, not through its picker")
"""Of a route with a converter, which the agent operates itself: it checks what an engine would not."""

log = structlog.get_logger()


def _do_nothing() -> None:
    """Leave a request to the next message or check."""


class RequestStream:
    """Receives the messages of one request, and is the owner of its kept body."""

    def __init__(self, parts: PickerParts, talk: Conversation, peer_ip: str) -> None:
        """Start before the head.

        Args:
            talk: the state of the request, and the way back to Envoy.
            peer_ip: the address of Envoy.
        """
        self._parts = parts
        self._talk = talk
        self._peer_ip = peer_ip
        self._request: Request | None = None
        self._from_envoy: FromEnvoy | None = None
        self._picked: PickedRequest | None = None
        self._wait: asyncio.Task[None] | None = None
        """Waits for a look-up, or until the head can be checked."""
        self._is_held = False
        """Whether the further messages of Envoy wait."""
        self._began_at = 0.0
        self._has_trailers = False
        self._expects_whole = False
        """Whether the head has not been checked, because the next message should have the whole body."""
        self._messages: InferMessages | None = None
        """Reads the model of an inference over gRPC; None for other requests."""

    def receive(self, message: ProcessingRequest) -> None:
        """Process a message of Envoy.

        Raises:
            InvalidTransition: the message is out of order.
            BadMode: Envoy's configuration does not let the picker read a body.
        """
        if self._talk.is_done:
            return
        kind, picked, request = message.kind, self._picked, self._request
        if kind == REQUEST_HEADERS:
            self._on_head(message)
        elif kind == REQUEST_BODY and request is not None:
            # In this mode a message has the whole body, though it does not state the end of a request with trailers.
            self._on_body(request, message.body, ends=message.ends or self._talk.request_mode == BUFFERED)
        elif kind == REQUEST_TRAILERS and request is not None:
            self._on_trailers(request)
        elif picked is None and kind == RESPONSE_HEADERS and message_reading.own_response_of_envoy(message):
            self._refuse(message_reading.refusal_by_envoy(message), request)
        elif picked is None:
            raise InvalidTransition(f"field {kind} in state {self._talk.state.value}")
        elif kind == RESPONSE_HEADERS:
            picked.on_response_headers(message)
        elif kind == RESPONSE_BODY:
            picked.on_response_body(message.body, ends=message.ends)
        elif kind == RESPONSE_TRAILERS:
            picked.on_response_trailers(message.headers)

    # the request

    def _on_head(self, message: ProcessingRequest) -> None:
        parts, talk = self._parts, self._talk
        if self._request is not None:
            raise InvalidTransition("a second head")
        talk.use_modes(message)
        received = message.headers
        request = message_reading.read_request_head(received, parts.limits, parts.location_header, ends=message.ends)
        if isinstance(request, Refusal):
            self._refuse(request, None)
            return
        self._request = request
        self._began_at = parts.proxy.clock()
        in_head = talk.request_mode != BUFFERED or request.whole
        self._from_envoy = FromEnvoy(
            [header for header in received if not header[0].startswith(b":")],
            request.target,
            message_reading.scheme_of(received),
            message.subset,
            parts.trusts(self._peer_ip),
            envoy_responses.TO_REQUEST_HEADERS if in_head else envoy_responses.TO_REQUEST_BODY,
        )
        self._from_envoy.has_body = not message.ends
        if grpc_requests.is_inference(request):
            talk.is_grpc, self._messages = True, InferMessages()
            self._use_path(request)
        preflight = None if request.plain else parts.traffic.preflight(request)
        refusal = parts.traffic.refuse_route(request)
        if refusal is None and request.route is not None and request.route.converter:
            refusal = _CONVERTED
        if preflight is not None:
            self._respond(*preflight)
        elif refusal is not None and request.route is None and parts.traffic.lists_models(request):
            self._list_models(request)
        elif refusal is not None and request.path in HEALTH_PATHS:
            self._respond(*parts.traffic.health(request.path))
        elif refusal is not None:
            self._refuse(refusal, request)
        elif request.whole:
            self._start(request)
        elif in_head and self._messages is None and 0 < (request.length or 0) <= self._small_bytes():
            self._expects_whole = True
            talk.enter(_S.RECEIVING)
        else:
            self._receive_body(request, in_head)

    def _list_models(self, request: Request) -> None:
        page = self._parts.traffic.models(request, self._peer_ip)
        if page is KEY_AWAITED:
            self._hold(self._parts.traffic.wait_for_key(), partial(self._list_models, request))
        elif isinstance(page, Refusal):
            self._refuse(page, request)
        else:
            self._respond(*page)

    def _receive_body(self, request: Request, in_head: bool) -> None:
        """Accept a request by its head, and let its body arrive."""
        if self._accept(request, partial(self._receive_body, request, in_head)):
            self._talk.enter(_S.RECEIVING)
            if not in_head:
                self._talk.send(envoy_responses.unchanged(envoy_responses.TO_REQUEST_HEADERS))

    def _small_bytes(self) -> int:
        limits = self._parts.limits
        return min(MAX_SMALL_BYTES, limits.json_bytes, limits.max_body_bytes)

    @staticmethod
    def _has_whole(request: Request, chunk: bytes) -> bool:
        """Keep `chunk` if it is the whole body; returns whether the body is complete. Its end may follow."""
        if chunk and len(chunk) == request.length and not request.body:
            request.body, request.received_bytes = chunk, len(chunk)
            return True
        return not chunk and len(request.body) == request.length

    def _accept(self, request: Request, again: Callable[[], None]) -> bool:
        """Check a request by its head, before its body is kept; refuse it if it is not permitted.

        Args:
            again: called once a head can be checked that has to wait.
        """
        parts = self._parts
        refusal = parts.body_limits.accept(request, self._peer_ip)
        if isinstance(refusal, HeadPostponed):
            self._hold(refusal.wait(), again)
            return False
        self._expects_whole = False
        refusal = refusal or parts.traffic.refuse_receiving(request, self._peer_ip)
        if refusal is not None:
            self._refuse(refusal, request)
        return refusal is None

    def _on_body(self, request: Request, chunk: bytes, *, ends: bool) -> None:
        """Keep a part of the body, or send it on if Envoy has the target."""
        talk, limits, bodies = self._talk, self._parts.body_limits, self._parts.bodies
        if request.whole:
            raise InvalidTransition("a body after its end")
        if self._expects_whole:
            if self._has_whole(request, chunk):
                if ends:
                    self._expects_whole, request.whole = False, True
                    self._start(request)
                return
            if not self._accept(request, partial(self._on_body, request, chunk, ends=ends)):
                return
        refusal = limits.check(request, chunk)
        may_start = False
        if refusal is None and self._messages is not None and not request.started:
            refusal = self._read_model(request, self._messages, chunk)
        if refusal is None and talk.state in _WITH_TARGET:
            if chunk or ends:
                for part in envoy_responses.body_chunks(envoy_responses.TO_REQUEST_BODY, chunk, ends=ends):
                    talk.send(part)
        elif refusal is None and chunk:
            if not bodies.make_room(request, len(chunk)):
                refusal = NO_ROOM
            elif not talk.is_done:  # to make room, a body of this tenant may have been displaced
                may_start = limits.keep(request, chunk, self)
                if self._messages is not None:
                    may_start = self._messages.is_named
        if talk.is_done:
            return
        if refusal is None and ends:
            refusal = self._end_of_body(request)
        if refusal is not None:
            self._refuse_late(refusal)
        elif talk.state is _S.RECEIVING and (ends or may_start):
            self._start(request)

    def _read_model(self, request: Request, messages: InferMessages, chunk: bytes) -> Refusal | None:
        """Read the model of an inference over gRPC from the part of its body that has arrived."""
        was_named = messages.is_named
        problem = messages.feed(chunk)
        if not problem and messages.is_named and not was_named:
            self._use_path(request)
            return self._parts.traffic.refuse_route(request)
        return Refusal(Reason.BAD_REQUEST, problem) if problem else None

    def _use_path(self, request: Request) -> None:
        """Route an inference over gRPC by its method and model; Envoy keeps its path."""
        assert self._from_envoy is not None
        request.path = grpc_requests.path_of(self._from_envoy.target.partition(b"?")[0], self._messages)
        request.route = None

    def _on_trailers(self, request: Request) -> None:
        """Process the trailers, which end the body."""
        if self._talk.request_mode == BUFFERED and request.whole and not self._has_trailers:
            self._has_trailers = True
            if self._talk.state in _WITH_TARGET:
                self._talk.send(envoy_responses.unchanged(envoy_responses.TO_REQUEST_TRAILERS))
            return
        if request.whole:
            raise InvalidTransition("trailers after the end of the body")
        if self._expects_whole and not self._accept(request, partial(self._on_trailers, request)):
            return
        refusal = self._end_of_body(request)
        self._has_trailers = True
        if refusal is not None:
            self._refuse_late(refusal)
        elif self._talk.state in _WITH_TARGET:
            self._talk.send(envoy_responses.unchanged(envoy_responses.TO_REQUEST_TRAILERS))
        elif self._talk.state is _S.RECEIVING:
            self._start(request)
        elif self._from_envoy is not None:
            self._from_envoy.has_trailers = True

    def _end_of_body(self, request: Request) -> Refusal | None:
        if self._messages is not None and not request.started:
            problem = self._messages.finish()
            if problem:
                return Refusal(Reason.BAD_REQUEST, problem)
        request.whole = True
        if request.length is None or not request.started:
            request.length = request.received_bytes
        problem = request.body_check.finish() if request.body_check is not None and request.started else ""
        return Refusal(Reason.BAD_REQUEST, problem) if problem else None

    def _hold(self, wait: Awaitable[None], again: Callable[[], None]) -> None:
        """Let the messages of Envoy wait, and call `again` after `wait`."""
        self._is_held = True
        self._talk.hold(True)
        self._call_after(wait, partial(self._release_hold, again))

    def _release_hold(self, again: Callable[[], None]) -> None:
        self._is_held, self._began_at = False, self._parts.proxy.clock()
        again()
        if not self._is_held:
            self._talk.hold(False)

    def _call_after(self, wait: Awaitable[None], then: Callable[[], None]) -> None:
        self._wait = asyncio.create_task(self._run_after(wait, then), name="look-up before a request is read")

    async def _run_after(self, wait: Awaitable[None], then: Callable[[], None]) -> None:
        try:
            await wait
            then()
        except Exception:
            log.exception("handling a request after a look-up failed")
            self._refuse_late(Refusal(Reason.ENGINE_FAILED, "what the request needs could not be looked up"))

    def _start(self, request: Request) -> None:
        """Read the request, after its objects have been looked up, if it names any that this agent does not know."""
        parts = self._parts
        request.started = True
        request.body_check = self._messages
        refusal = parts.traffic.refuse_route(request)
        owner = "" if refusal is not None else parts.traffic.owner_of_objects(request, self._peer_ip)
        if isinstance(owner, Refusal):
            self._refuse_or_wait(owner, request)
            return
        objects, now = parts.proxy.router.requests.objects, parts.proxy.clock()
        unknown = objects.unknown(owner, objects_of(request), now) if owner and objects.can_seek(()) else []
        if unknown:
            self._talk.enter(_S.LOOKUP)
            self._call_after(objects.seek(owner, unknown, now), partial(self._read, request, None))
        else:
            self._read(request, refusal)

    def _refuse_or_wait(self, refusal: Refusal, request: Request) -> None:
        """Refuse a request that was not authorized, or start it again once what it waits for may be there."""
        wait = self._parts.traffic.awaited(refusal, request)
        if wait is None:
            self._refuse(refusal, request)
        elif not self._talk.is_done:
            self._talk.enter(_S.LOOKUP)
            self._call_after(wait(), partial(self._start, request))

    def _read(self, request: Request, refusal: Refusal | None) -> None:
        parts, talk, given = self._parts, self._talk, self._from_envoy
        if talk.is_done or given is None:
            return
        context = refusal or parts.traffic.read(request, self._peer_ip)
        if not isinstance(context, RequestContext):
            self._refuse_or_wait(context, request)
            return
        given.has_trailers = self._has_trailers
        refusal = None
        if given.subset is not None or not parts.forwards or talk.is_grpc:
            refusal = self._keep_here(context, given.subset)
        picked = self._picked = PickedRequest(parts, talk, context, given)
        is_measured = begin(parts.proxy, context, trusted=given.trusted)
        picked.slot = parts.proxy.active.next
        picked.slot.add(picked)
        if refusal is not None:
            picked.end(refusal)
        else:
            parts.traffic.consider_copy(context, self._peer_ip)
            picked.select(context.received_at)
        if is_measured:
            parts.proxy.metrics.decided(parts.proxy.clock() - context.received_at)

    def _keep_here(self, context: RequestContext, addresses: frozenset[str] | None) -> Refusal | None:
        """Let only this region serve a request, which Envoy cannot send elsewhere; returns a refusal if it may not.

        Args:
            addresses: the endpoints that Envoy permits, as `ip:port`; None for all of them.
        """
        proxy, over_grpc = self._parts.proxy, self._talk.is_grpc
        region = proxy.router.region
        subset = None if addresses is None and not over_grpc else EndpointSubset(addresses, over_grpc=over_grpc)
        context.keep_in(region, subset)
        if region not in context.residency.permitted.regions:
            return Refusal(Reason.MISDIRECTED, f"the request may not be served in {region}, where it stays")
        endpoints = proxy.router.local.endpoints.pools[context.model].endpoints if over_grpc else []
        if endpoints and all(each.spec.grpc_port is None for each in endpoints):
            detail = f"no endpoint of {context.model} in {region} has a grpc_port, and other regions receive no gRPC"
            return Refusal(Reason.NOT_OFFERED, detail)
        return None

    # ends

    def _respond(self, status: int, lines: list[bytes], body: bytes) -> None:
        self._talk.enter(_S.DONE)
        self._release()
        self._talk.respond(status, lines, body, self._request)

    def _refuse(self, refusal: Refusal, request: Request | None) -> None:
        """Refuse a request that was not authorized."""
        status, lines, body = self._parts.traffic.refuse(refusal, request)
        self._talk.enter(_S.DONE)
        self._release()
        self._talk.respond(status, lines, body, request, refusal.reason.value)

    def _refuse_late(self, refusal: Refusal) -> None:
        """Refuse a request, whether or not it was authorized."""
        if self._picked is not None:
            self._picked.refuse_body(refusal)
        elif not self._talk.is_done:
            self._refuse(refusal, self._request)

    def refuse(self, reason: Reason, detail: str) -> None:
        """Refuse a request of which a message cannot be processed."""
        self._refuse_late(Refusal(reason, detail))

    def _release(self) -> None:
        """Release the memory and the quota that the request holds since its head. A second call does nothing."""
        if self._request is not None:
            self._parts.body_limits.release(self._request)

    def displace(self, request: Request) -> None:
        """Refuse the request, whose body has to make room, unless Envoy has received the body."""
        if self._talk.state in _BEFORE_TARGET or self._talk.state is _S.RECEIVING:
            self._refuse_late(DISPLACED)

    def check_body(self, now: float) -> None:
        """Refuse a request whose body arrives too slowly, or that is not permitted any more. `now` in s."""
        request = self._request
        if request is not None and not request.whole and not self._talk.is_done:
            if self._is_held or (self._expects_whole and not self._accept(request, _do_nothing)):
                return
            refusal = self._parts.body_limits.overdue(request, now - self._began_at, self._peer_ip)
            if refusal is not None:
                self._refuse_late(refusal)

    def shut_down(self) -> None:
        """Refuse a request whose body is arriving and that was not authorized, because the agent stops."""
        if self._talk.state is _S.RECEIVING:
            self._refuse(_SHUTTING_DOWN, self._request)

    def on_sent(self) -> None:
        """Free the body: all messages for Envoy have been written."""
        if self._talk.state in _WITH_TARGET and self._request is not None and self._request.body:
            self._parts.bodies.release(self._request)

    def close(self) -> None:
        """End the request: Envoy has closed its stream, because it needs no more, or the client has disconnected."""
        if self._wait is not None:
            self._wait.cancel()
        if self._picked is not None:
            self._picked.on_closed()
        elif not self._talk.is_done:
            self._talk.enter(_S.DONE)
        self._release()
