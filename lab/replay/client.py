"""Performs one request as an SDK behind a geo-DNS does: at the nearest entry, or at another entry if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lab.replay.chat_exchange import ChatExchange
from lab.replay.chat_request import chat_request
from lab.replay.connection_pool import ConnectionPool
from lab.replay.entry import Entry, choose_entry
from lab.replay.health_checks import HealthChecks
from lab.replay.outcome import Outcome, TryResult
from lab.replay.replay_workload import PlannedRequest
from lab.replay.request_progress import REGIONS_HEADER, RETRY_AFTER_HEADER, RequestProgress, header_text
from lab.replay.response_exchange import SILENT, ResponseExchange
from lab.replay.unstreamed_requests import embedding_request, image_request, missing_embedding, missing_image
from lab.replay.whole_exchange import WholeExchange
from lab.replay.written_request import WrittenRequest


class Patience(msgspec.Struct, frozen=True):
    """Timeouts of clients."""

    connect_s: float = 3.0
    """For establishing a connection (s)."""
    first_byte_s: float = 30.0
    """For the first byte of a response (s); the request is then retried at another entry."""
    whole_s: float = 120.0
    """For the whole request (s), from its due time."""
    retry_after_s: float = 0.0
    """Longest Retry-After (s) that a client waits for, once per request; with 0, 429 and 503 are final."""


class Client:
    """All clients of all sites: their entries, connections and entry health."""

    def __init__(self, entries: Mapping[str, Sequence[Entry]], patience: Patience, clock: Callable[[], float]) -> None:
        """Create a client; `start` begins the health checks.

        Args:
            entries: entries by site, nearest first.
            patience: timeouts.
            clock: returns the time (s) to record in outcomes.

        Raises:
            BadUrl: the URL of an entry is invalid.
        """
        every = {entry.url: entry for site in entries.values() for entry in site}
        self._entries = entries
        self._patience = patience
        self._clock = clock
        self._pools = {url: ConnectionPool(url) for url in every}
        self._checks = HealthChecks(every.values())

    def start(self) -> None:
        """Start the health checks of entries."""
        self._checks.start()

    async def close(self) -> None:
        """Stop the health checks and close every connection."""
        await self._checks.close()
        for pool in self._pools.values():
            pool.close()

    async def perform(self, planned: PlannedRequest) -> Outcome:
        """Perform one request and return its outcome. Never raises: a cancelled request counts as failed."""
        progress = RequestProgress(planned, self._clock())
        try:
            async with asyncio.timeout(planned.at_s + self._patience.whole_s - self._clock()):
                await self._attempt_entries(progress)
        except TimeoutError:
            progress.record_loss("timeout", self._clock())
        except asyncio.CancelledError:
            progress.record_loss("unanswered_at_end", self._clock())
        return progress.outcome(self._clock())

    async def _attempt_entries(self, progress: RequestProgress) -> None:
        planned = progress.planned
        request = _written(planned)
        entries = self._entries[progress.planned.site]
        result = None
        while result is not TryResult.ANSWERED:
            entry = choose_entry(entries, self._checks.health, progress.tried, progress.named_regions)
            if entry is None:
                return
            progress.start_attempt(entry, self._clock())
            result, problem, wait_s = await self._try(progress, self._pools[entry.url], request)
            progress.end_attempt(result, problem, self._clock())
            if result is TryResult.ASKED_TO_WAIT:
                progress.tried -= {entry.url}
                await asyncio.sleep(wait_s)

    async def _try(
        self, progress: RequestProgress, pool: ConnectionPool, request: WrittenRequest
    ) -> tuple[TryResult, str, float]:
        """Send the request to one entry. Returns the result, the problem, and the time (s) to wait for a retry.

        A reused connection that the server has closed is replaced once (RFC 9112, section 9.3.1).
        """
        exchange, reused = await self._exchange(progress, pool, request, fresh=False)
        if reused and exchange is not None and exchange.first_byte_s is None and exchange.problem != SILENT:
            exchange, _ = await self._exchange(progress, pool, request, fresh=True)
        if exchange is None:
            return TryResult.UNREACHABLE, "unreachable", 0.0
        if exchange.first_byte_s is None:
            return TryResult.SILENT if exchange.problem == SILENT else TryResult.BROKEN, exchange.problem, 0.0
        if exchange.status == 421 and (regions := self._elsewhere(progress, exchange)):
            progress.named_regions = regions
            return TryResult.REDIRECTED, exchange.problem, 0.0
        if (wait_s := self._wait_s(progress, exchange)) is not None:
            progress.waited = True
            return TryResult.ASKED_TO_WAIT, exchange.problem, wait_s
        return TryResult.ANSWERED, exchange.problem, 0.0

    async def _exchange(
        self, progress: RequestProgress, pool: ConnectionPool, request: WrittenRequest, fresh: bool
    ) -> tuple[ResponseExchange | None, bool]:
        """Send the request once. Returns the exchange (None without connection) and whether a connection was reused."""
        try:
            connection = await pool.connection(self._patience.connect_s, fresh)
        except OSError:
            return None, False
        reused = connection.reused
        exchange = self._new_exchange(progress.planned)
        progress.record_send(exchange, self._clock())
        exchange.start(connection, request.to(pool.authority), self._patience.first_byte_s)
        try:
            await exchange.finished
        except asyncio.CancelledError:
            connection.close()
            raise
        return exchange, reused

    def _new_exchange(self, planned: PlannedRequest) -> ResponseExchange:
        if planned.image is not None:
            return WholeExchange(self._clock, missing_image)
        if planned.embedding:
            return WholeExchange(self._clock, missing_embedding)
        return ChatExchange(self._clock, planned.hang_up_after_tokens)

    def _elsewhere(self, progress: RequestProgress, answer: ResponseExchange) -> list[str]:
        """The regions that a 421 response named; empty if the client has no untried entry in these regions."""
        regions = [name.strip() for name in header_text(answer, REGIONS_HEADER).split(",") if name.strip()]
        entries = self._entries[progress.planned.site]
        return regions if choose_entry(entries, self._checks.health, progress.tried, regions) else []

    def _wait_s(self, progress: RequestProgress, answer: ResponseExchange) -> float | None:
        """Time (s) to wait before a retry at the same entry; None if the response is final."""
        if answer.status not in (429, 503) or progress.waited:
            return None
        try:
            asked_s = float(header_text(answer, RETRY_AFTER_HEADER) or "nan")
        except ValueError:
            return None
        return asked_s if 0 <= asked_s <= self._patience.retry_after_s and self._patience.retry_after_s > 0 else None


def _written(planned: PlannedRequest) -> WrittenRequest:
    if planned.image is not None:
        return image_request(planned, planned.image)
    return embedding_request(planned) if planned.embedding else chat_request(planned)
