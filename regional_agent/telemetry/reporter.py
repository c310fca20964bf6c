"""Sends a report to the leading control plane once a second, and immediately when another region fails.

The agent serves requests whether or not reports are delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from penstock.fleet.report import AgentReport
from penstock.wire import signed_report
from penstock.wire.peer_keys import Purpose
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.upstream.leader_link import LeaderLink, Message, NotDelivered

INTERVAL_S = 1.0
"""Time (s) between two reports."""

APART_S = 0.25
"""Minimum time (s) between two reports, also when several regions fail."""

TIMEOUT_S = 1.0
"""Timeout of a report in seconds. A report is not retried, since the next one is newer."""

log = structlog.get_logger()


class Reporter:
    """Sends reports to the leader; if unknown, to a random control plane, whose receipt names the leader."""

    def __init__(self, link: LeaderLink, build: Callable[[], AgentReport]) -> None:
        """Create a reporter that sends nothing before `start`.

        Args:
            link: the way to the leader.
            build: builds the current report.
        """
        self._link = link
        self._build = build
        self._is_delivered = True
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Send the next report before the end of the interval, because the leader needs the change as evidence."""
        self._wanted.set()

    def start(self) -> None:
        """Start reporting."""
        self._task = keep_running("reporter", self._keep_reporting)

    async def stop(self) -> None:
        """Stop reporting."""
        if self._task is not None:
            await cancel([self._task])

    async def _keep_reporting(self) -> None:
        while True:
            self._wanted.clear()
            await asyncio.gather(self._report(), self._pause())

    async def _pause(self) -> None:
        await asyncio.sleep(min(APART_S, INTERVAL_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(INTERVAL_S - APART_S):
                await self._wanted.wait()

    async def _report(self) -> None:
        target = self._link.target()
        if target is None:
            return
        message = Message(signed_report.PATH, Purpose.REPORT, msgspec.msgpack.encode(self._build()))
        try:
            receipt = await self._link.send(target, message, TIMEOUT_S)
        except NotDelivered as failure:
            if self._is_delivered:
                log.warning("report not delivered", control_plane=str(target), reason=str(failure))
            self._is_delivered = False
            self._link.forget(target)
            return
        if not self._is_delivered:
            log.info("reports are accepted again", control_plane=str(target))
        self._is_delivered = True
        self._link.follow(receipt.body, target)
