"""Runs a stored request until it has a result: again where its engine failed, and later where there was no room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from adapters.backoff import full_jitter_s
from penstock.http.header_rules import ENGINE_FAILED_HEADER, REFUSAL_HEADER
from penstock.jobs.batches import item_results
from penstock.jobs.batches.item_results import Next, RequestEvent, next_of
from regional_agent.jobs.internal_connection import ConnectionLost, InternalRequests, InternalResponse, OnPart
from regional_agent.jobs.job_metrics import JobMetrics
from regional_agent.ledger.held_files import HeldRecords


class StoredRequest(NamedTuple):
    """A request as it is sent."""

    head: bytes
    """Request line and header lines, as of `InternalRequests.send`."""
    body: bytes


class RequestRunner:
    """Runs requests of one sender."""

    def __init__(self, requests: InternalRequests, metrics: JobMetrics, held_records: HeldRecords) -> None:
        """Create a runner.

        Args:
            requests: sends requests as their sender.
            held_records: the records of the ledger, until the store has the results.
        """
        self._requests = requests
        self._metrics = metrics
        self.held_records = held_records
        self._rng = Random()

    async def run(
        self, request: StoredRequest, is_stopped: Callable[[], bool], on_part: OnPart | None = None
    ) -> InternalResponse | str | None:
        """Return the response that is the result.

        Args:
            is_stopped: whether the request must not run again.
            on_part: see `InternalRequests.send`.

        Returns:
            The response; the problem if the response was incomplete or too large; None if the request was stopped
            before it had a result.
        """
        runs = waits = 0
        while True:
            runs += 1
            try:
                response = await self._requests.send(request.head, request.body, on_part)
            except ConnectionLost as error:
                if runs < item_results.MAX_LOST_RUNS:
                    continue
                self._metrics.request(RequestEvent.FAILED)
                return str(error)
            engine_failed = ENGINE_FAILED_HEADER in response.headers
            following = next_of(response.status, response.header(REFUSAL_HEADER), runs, engine_failed=engine_failed)
            if following is Next.RESULT:
                self._metrics.request(RequestEvent.FAILED if response.status >= 400 else RequestEvent.COMPLETED)
                return response
            self._metrics.request(RequestEvent.WAITED if following is Next.WAIT else RequestEvent.RAN_AGAIN)
            if following is Next.WAIT:
                runs -= 1
                waits += 1
            if is_stopped():
                return None
            base_s, cap_s = item_results.RETRY_BASE_S, item_results.RETRY_CAP_S
            await asyncio.sleep(full_jitter_s(max(runs, waits), base_s=base_s, cap_s=cap_s, rng=self._rng))
            if is_stopped():
                return None
