"""The result cache of one agent: which request may receive a kept response, and which response is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.cost.gpu_time import estimated_gpu_s
from penstock.http.answer_intake import AnswerIntake, intake_of
from penstock.http.header_rules import Header
from penstock.http.response_head import ResponseHead
from penstock.policy.kinds.result_cache import SMALL_BYTES, ResultCache
from penstock.policy.policy import Policy
from penstock.result_cache.cache_control import (
    CACHE_CONTROL,
    IF_NONE_MATCH,
    PRAGMA,
    Wishes,
    entity_tag,
    lifetime_s,
    matches_tag,
    wishes_of,
)
from penstock.result_cache.cache_key import KeyFields, cache_for, may_keep, result_key
from penstock.result_cache.cache_purges import CachePurges
from penstock.result_cache.cached_result import CachedResult
from penstock.routing.reasons import Refusal
from regional_agent.coalescing.run_memory import in_pieces
from regional_agent.http.client_connection import ClientConnection
from regional_agent.http.messages import NOT_MODIFIED, Request
from regional_agent.http.request_handler import Handler
from regional_agent.jobs.api.api_responses import Answer, Content, Refuse, WaitingResponse
from regional_agent.jobs.internal_connection import InternalResponse
from regional_agent.proxy.proxy import Proxy
from regional_agent.proxy.request_end import end_request
from regional_agent.requests.authorization import Sender
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.result_cache.memory_results import MemoryResults
from regional_agent.result_cache.result_cache_metrics import BYPASSED, HIT, MISS
from regional_agent.result_cache.shared_results import SharedResults
from regional_agent.result_cache.stored_bodies import StoredBodies, StoredBody

_PIECE_BYTES: Final = 256 * 1024
"""Bytes of a large response that are read at a time, between other work of the agent."""

_SUBSTITUTED: Final = b"x-penstock-model"


def request_wishes(request: Request) -> Wishes:
    """Return what a request asks of the cache."""
    return wishes_of(b",".join(request.every(CACHE_CONTROL)) or None, request.header(PRAGMA))


class AgentResultCache:
    """The kept responses that one agent can send."""

    def __init__(
        self,
        reader: ClientRequestReader,
        proxy: Proxy,
        shared: SharedResults | None,
        purges: Callable[[], CachePurges | None],
        bodies: StoredBodies,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Create a cache that keeps nothing yet.

        Args:
            reader: of the requests of clients.
            shared: the responses in the region's Redis; None for the only agent of a region.
            purges: returns the purges in force; None while they are unknown, so that nothing is kept or found.
            bodies: the bodies of large responses, in the job store.
            wall_clock: Unix time (s).
        """
        self.bodies = bodies
        self._reader = reader.without_demand()
        self._proxy = proxy
        self._purges = purges
        self._wall_clock = wall_clock
        self._memory = MemoryResults()
        self.shared = shared
        self.region = proxy.router.region
        self.metrics = proxy.metrics.result_cache

    def use_of(
        self,
        policy: Policy,
        request: Request,
        sender: Sender,
        wishes: Wishes,
        body: bytes,
        headers: tuple[Header, ...],
    ) -> CacheUse | Refusal | None:
        """Return how a request uses the cache; None if it does not, or its refusal.

        Args:
            wishes: see `request_wishes`.
            body: see `deterministic_requests.DeterministicRequest`.
            headers: those of the client that the engine receives.
        """
        route = request.route
        purges = self._purges()
        if route is None or purges is None:
            return None
        cache = cache_for(policy, route.name, sender.tenant.name)
        if cache is None:
            return None
        ledger = self._proxy.recorder.ledger
        if not wishes.may_store or (ledger is not None and ledger.refuses):
            self.metrics.requests.labels(BYPASSED).inc()
            return None
        timeout_s = self._proxy.limits.request_timeout_s
        context = self._reader.read(policy, request, sender, self._proxy.clock(), inf, timeout_s)
        if isinstance(context, Refusal):
            return context
        permitted = context.residency.permitted
        use = CacheUse(self, self._proxy, cache, context, wishes)
        if not may_keep(self.region, permitted):
            use.release()
            return None
        adapter = context.estimate.adapter
        newest = purges.newest(context.model, adapter, context.asked_for)
        fields = KeyFields(context.model, adapter, route.name, request.target, headers, body, permitted.name, newest)
        use.key = result_key(policy, cache, sender.tenant.name, fields)
        return use

    def find_here(self, key: bytes) -> CachedResult | None:
        """Return a response in the memory of the agent."""
        return self._memory.find(key, self._wall_clock())

    async def find_shared(self, cache: ResultCache, key: bytes) -> CachedResult | None:
        """Return a response in the region's Redis, and keep it in memory."""
        found = None if self.shared is None else await self.shared.find(cache, key)
        if found is not None:
            self._put(found)
        return found

    def keep(self, cache: ResultCache, result: CachedResult) -> None:
        """Keep a response in memory and in the region's Redis. The job store has the body of a large one already."""
        self._put(result)
        self.metrics.stored_bytes.inc(len(result.body) + result.stored_bytes)
        if self.shared is not None:
            self.shared.store(cache, result)

    def now(self) -> float:
        """Return the Unix time (s)."""
        return self._wall_clock()

    def _put(self, result: CachedResult) -> None:
        self._memory.put(result)
        self.metrics.memory_bytes.set(self._memory.size_bytes)


class CacheUse:
    """The use of the cache by one request, which was authorized and has reserved its budgets."""

    def __init__(
        self, results: AgentResultCache, proxy: Proxy, cache: ResultCache, context: RequestContext, wishes: Wishes
    ) -> None:
        self._results = results
        self._proxy = proxy
        self._cache = cache
        self._context = context
        self._wishes = wishes
        self._stored: CachedResult | None = None
        """The response in memory whose body is in the job store."""
        self.key = b""
        """The key of the response."""

    # looking up

    def find_here(self) -> CachedResult | None:
        """Return the response if the agent has it in memory and the client accepts its age."""
        if self._wishes.max_age_s == 0.0:
            return None
        found = self._acceptable(self._results.find_here(self.key))
        if found is None or not found.stored_bytes:
            return found
        self._stored = found
        return None

    @property
    def asks_others(self) -> bool:
        """Whether the job store has the response, or the region's Redis may have it and can be asked."""
        shared = self._results.shared
        is_asked = shared is not None and self._wishes.max_age_s != 0.0 and shared.is_asked
        return self._stored is not None or is_asked

    async def find_elsewhere(self) -> CachedResult | StoredBody | None:
        """Return the response if the region's Redis or job store has it and the client accepts its age."""
        found = self._stored or self._acceptable(await self._results.find_shared(self._cache, self.key))
        if found is None or not found.stored_bytes or self._is_known(found):
            return found
        return await self._results.bodies.open(self._context, self._cache, found)

    def _is_known(self, found: CachedResult) -> bool:
        """Whether the client has the body."""
        return matches_tag(b",".join(self._context.request.every(IF_NONE_MATCH)) or None, found.tag)

    def _acceptable(self, found: CachedResult | None) -> CachedResult | None:
        lifetime_s = float(self._cache.max_age_s)
        return found if found is not None and found.suits(self._wishes, self._results.now(), lifetime_s) else None

    # a response was kept

    def send(self, found: CachedResult, connection: ClientConnection, refuse: Refuse) -> Handler | None:
        """Send a kept response, and record the account of the request; returns the handler of a large response."""
        status, body = (NOT_MODIFIED, b"") if self._is_known(found) else (200, found.body)
        lines = self._record(found, status, len(body))
        return in_pieces(self._context.request, connection, refuse, status, lines, body)

    def stream(self, found: StoredBody, connection: ClientConnection, refuse: Refuse) -> Handler:
        """Send a kept response whose body is read as the client receives it, and record the account of the request."""
        size = found.result.stored_bytes
        lines = tuple(self._record(found.result, 200, size))

        async def answer() -> Answer:
            return Content(size, found.parts, lines)

        return WaitingResponse(self._context.request, connection, refuse, answer())

    def _record(self, found: CachedResult, status: int, sent_bytes: int) -> list[bytes]:
        """Record the account of a request that receives a kept response; returns the header lines."""
        results, context, proxy = self._results, self._context, self._proxy
        now, request = proxy.clock(), context.request
        account = Account(Outcome.CACHED, "", status, now, now)
        account.received_bytes, account.sent_bytes = request.received_bytes, sent_bytes
        account.price_share = self._cache.price_percent / 100.0
        if account.price_share:
            is_final = found.usage is not None
            account.use_tokens(context.estimate, found.usage, -1, is_final=is_final, text_bytes=sent_bytes)
        end_request(proxy, context, None, None, account, None)
        metrics, work = results.metrics, context.estimate.work
        metrics.requests.labels(HIT).inc()
        metrics.sent_bytes.inc(sent_bytes)
        metrics.saved_gpu_s.inc(estimated_gpu_s(context.policy.models.get(context.model), work))
        unix_s = results.now()
        lines = [
            proxy.response_headers.lines(context, ""),
            b"x-penstock-region: %b\r\n" % found.region.encode(),
            b"etag: %b\r\n" % found.tag,
            b"age: %d\r\n" % found.age_s(unix_s),
            b"cache-status: penstock; hit; ttl=%d\r\n" % max(0.0, found.expires_at - unix_s),
        ]
        if status != NOT_MODIFIED:
            lines.append(b"content-type: %b\r\n" % found.content_type)
        return lines

    # no response was kept

    def missed(self) -> None:
        """Count a miss, and give back what the request holds: it runs as any other request."""
        self._results.metrics.requests.labels(MISS).inc()
        self.release()

    def release(self) -> None:
        """Give back what the request has reserved."""
        reservation = self._context.reservation
        if reservation is not None:
            reservation.give_back(self._proxy.clock())

    def end(self, outcome: Outcome) -> None:
        """Record the account of a request that ends during the look-up."""
        end_request(self._proxy, self._context, None, None, Account(outcome, "", 0, None, self._proxy.clock()), None)

    def keep(self, response: InternalResponse) -> None:
        """Keep the response of the run, if it is complete, successful and small enough."""
        headers = response.headers
        if len(response.body) > self._cache.max_response_bytes or not lifetime_s(response.status, headers):
            return
        if _SUBSTITUTED in headers:
            # A fallback model has served the request.
            return
        if len(response.body) > SMALL_BYTES:
            self._results.bodies.start(self._keep_large(response), len(response.body))
            return
        intake = self._intake_of(response)
        if intake is not None:
            intake.begin(response.body)
        result = self._result(response, intake)
        if result is not None:
            self._results.keep(self._cache, result)

    async def _keep_large(self, response: InternalResponse) -> None:
        intake = self._intake_of(response)
        if intake is not None:
            intake.begin(response.body[:_PIECE_BYTES])
            for start in range(_PIECE_BYTES, len(response.body), _PIECE_BYTES):
                intake.parser.feed(response.body[start : start + _PIECE_BYTES])
                await asyncio.sleep(0)
        result = self._result(response, intake)
        stored = None if result is None else await self._results.bodies.write(self._context, self._cache, result)
        if stored is not None:
            self._results.keep(self._cache, stored)

    def _intake_of(self, response: InternalResponse) -> AnswerIntake | None:
        """Return the reading of a response as of one that is proxied: the last of several engines that failed a request
        is forwarded as received."""
        formats, context = self._proxy.answer_formats, self._context
        head = ResponseHead(response.status, [], response.headers)
        return intake_of(formats, context.request.route, head, context.estimate, hides_usage=False)

    def _result(self, response: InternalResponse, intake: AnswerIntake | None) -> CachedResult | None:
        """Return the response as it is kept; None for one that reports an error, or no end."""
        parser = None if intake is None or intake.is_media else intake.parser
        if parser is not None:
            parser.finish(complete=True)
            if parser.error is not None or parser.is_cut or (parser.needs_json and not parser.ended):
                return None
        now = self._results.now()
        usage = parser.usage if parser is not None and parser.usage_is_final else None
        content_type, region = response.headers.get(b"content-type", b""), response.header(b"x-penstock-region")
        kept_s = min(self._cache.max_age_s, lifetime_s(response.status, response.headers))
        tag, expires_at = entity_tag(response.body), now + kept_s
        return CachedResult(self.key, now, expires_at, content_type, tag, region, usage, response.body)

    def answer(self, response: InternalResponse, lines: list[bytes]) -> tuple[int, list[bytes], bytes]:
        """Return status, header lines and body for the client of a run whose response is `lines` and a body."""
        if response.status != 200:
            return response.status, lines, response.body
        tag = entity_tag(response.body)
        context = self._context
        lines = [*lines, b"cache-status: penstock; fwd=miss\r\n", b"etag: %b\r\n" % tag]
        if context.model != context.asked_for and _SUBSTITUTED not in response.headers:
            lines.append(b"%b: %b\r\n" % (_SUBSTITUTED, context.model.encode()))
        if matches_tag(b",".join(context.request.every(IF_NONE_MATCH)) or None, tag):
            return NOT_MODIFIED, [line for line in lines if not line.startswith(b"content-type:")], b""
        return 200, lines, response.body
