"""Takes one request to an answer, as an SDK behind a geo-DNS would: nearest entry first, another if it is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import msgspec

from lab.replay.chat_exchange import ChatExchange
from lab.replay.chat_request import chat_request
from lab.replay.connection_pool import ConnectionPool
from lab.replay.entry import Entry, choose_entry
from lab.replay.health_checks import HealthChecks
from lab.replay.journey import REGIONS_HEADER, RETRY_AFTER_HEADER, Journey, header_text
from lab.replay.outcome import Outcome, TryResult
from lab.replay.replay_workload import PlannedRequest
from lab.replay.response_exchange import SILENT, ResponseExchange
from lab.replay.unstreamed_requests import embedding_request, image_request, missing_embedding, missing_image
from lab.replay.whole_exchange import WholeExchange
from lab.replay.written_request import WrittenRequest


class Patience(msgspec.Struct, frozen=True):
    """Timeouts of clients."""

    connect_s: float = 3.0
    """For a connection (s)."""
    first_byte_s: float = 30.0
    """For the first byte of an answer (s), then it is tried elsewhere."""
    whole_s: float = 120.0
    """For everything together (s), from when the request is due."""
    retry_after_s: float = 0.0
    """Honour a Retry-After of at most this (s), once; 0 takes 429 and 503 for an answer."""


class Client:
    """All clients of all sites: their entries, connections and entry health."""

    def __init__(self, entries: Mapping[str, Sequence[Entry]], patience: Patience, clock: Callable[[], float]) -> None:
        """A client that has not looked at its entries yet, see `start`.

        Args:
            entries: by site, nearest first.
            patience: how long it waits.
            clock: time (s) that is noted in outcomes.

        Raises:
            BadUrl: an entry's URL cannot be used.
        """
        every = {entry.url: entry for site in entries.values() for entry in site}
        self._entries = entries
        self._patience = patience
        self._clock = clock
        self._pools = {url: ConnectionPool(url) for url in every}
        self._checks = HealthChecks(every.values())

    def start(self) -> None:
        """Begin to check the health of entries."""
        self._checks.start()

    async def close(self) -> None:
        """Stop checking, drop every connection."""
        await self._checks.close()
        for pool in self._pools.values():
            pool.close()

    async def perform(self, planned: PlannedRequest) -> Outcome:
        """Take one request to its end; never raises, not even when it is cancelled: then it was not answered."""
        journey = Journey(planned, self._clock())
        try:
            async with asyncio.timeout(planned.at_s + self._patience.whole_s - self._clock()):
                await self._travel(journey)
        except TimeoutError:
            journey.is_lost("timeout", self._clock())
        except asyncio.CancelledError:
            journey.is_lost("unanswered_at_end", self._clock())
        return journey.outcome(self._clock())

    async def _travel(self, journey: Journey) -> None:
        planned = journey.planned
        request = _written(planned)
        entries = self._entries[journey.planned.site]
        result = None
        while result is not TryResult.ANSWERED:
            entry = choose_entry(entries, self._checks.health, journey.tried, journey.named_regions)
            if entry is None:
                return
            journey.goes_to(entry, self._clock())
            result, problem, wait_s = await self._try(journey, self._pools[entry.url], request)
            journey.returns(result, problem, self._clock())
            if result is TryResult.ASKED_TO_WAIT:
                journey.tried -= {entry.url}
                await asyncio.sleep(wait_s)

    async def _try(
        self, journey: Journey, pool: ConnectionPool, request: WrittenRequest
    ) -> tuple[TryResult, str, float]:
        """Go to one entry: how it ended, what went wrong, and how long (s) it asks to wait.

        A kept connection that turns out to be dead is replaced once (RFC 9112, section 9.3.1).
        """
        exchange, reused = await self._exchange(journey, pool, request, fresh=False)
        if reused and exchange is not None and exchange.first_byte_s is None and exchange.problem != SILENT:
            exchange, _ = await self._exchange(journey, pool, request, fresh=True)
        if exchange is None:
            return TryResult.UNREACHABLE, "unreachable", 0.0
        if exchange.first_byte_s is None:
            return TryResult.SILENT if exchange.problem == SILENT else TryResult.BROKEN, exchange.problem, 0.0
        if exchange.status == 421 and (regions := self._elsewhere(journey, exchange)):
            journey.named_regions = regions
            return TryResult.REDIRECTED, exchange.problem, 0.0
        if (wait_s := self._wait_s(journey, exchange)) is not None:
            journey.waited = True
            return TryResult.ASKED_TO_WAIT, exchange.problem, wait_s
        return TryResult.ANSWERED, exchange.problem, 0.0

    async def _exchange(
        self, journey: Journey, pool: ConnectionPool, request: WrittenRequest, fresh: bool
    ) -> tuple[ResponseExchange | None, bool]:
        """One request on one connection: what came of it (None without a connection), and whether it was a kept one."""
        try:
            connection = await pool.connection(self._patience.connect_s, fresh)
        except OSError:
            return None, False
        reused = connection.reused
        exchange = self._listener(journey.planned)
        journey.sends(exchange, self._clock())
        exchange.start(connection, request.to(pool.authority), self._patience.first_byte_s)
        try:
            await exchange.finished
        except asyncio.CancelledError:
            connection.close()
            raise
        return exchange, reused

    def _listener(self, planned: PlannedRequest) -> ResponseExchange:
        if planned.image is not None:
            return WholeExchange(self._clock, missing_image)
        if planned.embedding:
            return WholeExchange(self._clock, missing_embedding)
        return ChatExchange(self._clock, planned.hang_up_after_tokens)

    def _elsewhere(self, journey: Journey, answer: ResponseExchange) -> list[str]:
        """The regions that a 421 response named, if the client has an entry there that it has not tried."""
        regions = [name.strip() for name in header_text(answer, REGIONS_HEADER).split(",") if name.strip()]
        entries = self._entries[journey.planned.site]
        return regions if choose_entry(entries, self._checks.health, journey.tried, regions) else []

    def _wait_s(self, journey: Journey, answer: ResponseExchange) -> float | None:
        """How long to wait before going to the same entry again; None to take the answer for final."""
        if answer.status not in (429, 503) or journey.waited:
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
