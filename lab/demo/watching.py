"""Polls the agents' status and the witness files during a run: region states, requests in flight, and arrivals."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lab.demo.records import PeerMiss, PeerState, Sighting
from lab.witness import Sighting as WitnessSighting
from lab.witness import Witness

POLL_S = 0.25
FAST_POLL_S = 0.05
"""Poll intervals (s) of an agent: the normal interval, and the interval during the failure of a region."""

ASK_TIMEOUT_S = 0.5
MAX_ANSWER_BYTES = 1 << 20

Clock = Callable[[], float]
"""Returns the time (s) since the start of the schedule."""


async def get(host: str, port: int, path: str, key: str) -> tuple[int, bytes] | None:
    """Send a GET; return status and body, or None without a complete response within ASK_TIMEOUT_S."""
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                lines = f"GET {path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {key}\r\n"
                writer.write(f"{lines}connection: close\r\n\r\n".encode())
                answer = await reader.read(MAX_ANSWER_BYTES)
                while more := await reader.read(MAX_ANSWER_BYTES - len(answer)):
                    answer += more
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return None
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        return None
    return int(words[1]), body


async def get_json(host: str, port: int, path: str, key: str) -> dict[str, Any] | None:
    """Return the JSON object of a response with status 200; None otherwise."""
    answer = await get(host, port, path, key)
    if answer is None or answer[0] != 200:
        return None
    try:
        content = json.loads(answer[1])
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


class AgentWatch:
    """Polls the region states and the requests in flight of every agent."""

    def __init__(self, admin_ports: dict[str, int], host: str, clock: Clock, key: str) -> None:
        """Args: `admin_ports` by region/agent; `key` authenticates at the admin listeners."""
        self._key = key
        self._ports = admin_ports
        self._host = host
        self._clock = clock
        self._states: dict[tuple[str, str], str] = {}
        self._retries: dict[str, int] = {}
        self.peer_states: list[PeerState] = []
        self.misses: list[PeerMiss] = []
        self.running: dict[str, int] = {}
        """Requests in flight by region/agent."""
        self.missing: str | None = None
        """The region that is killed; new retries of other regions' agents count as attempts at this region."""
        self.polls_fast = False

    async def run(self) -> None:
        """Poll the agents until cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.gather(*(self._ask(observer) for observer in self._ports))
            pause_s = FAST_POLL_S if self.polls_fast else POLL_S
            await asyncio.sleep(max(0.0, began + pause_s - time.monotonic()))

    async def _ask(self, observer: str) -> None:
        status = await get_json(self._host, self._ports[observer], "/status", self._key)
        region = observer.partition("/")[0]
        self.running[observer] = 0
        if status is None:
            return
        self.running[observer] = sum(status["in_flight"].values())
        for peer, seen in status["peers"].items():
            state = str(seen["state"])
            if self._states.get((observer, peer)) != state:
                self._states[observer, peer] = state
                self.peer_states.append(PeerState(self._clock(), observer, peer, state))
        if self.missing not in (None, region):
            await self._count_retries(observer)

    async def _count_retries(self, observer: str) -> None:
        answer = await get(self._host, self._ports[observer], "/metrics", self._key)
        if answer is None:
            return
        retries = sum(
            float(line.rsplit(b" ", 1)[1])
            for line in answer[1].splitlines()
            if line.startswith(b"penstock_agent_retries_total{")
            and (b"connect_failed" in line or b"closed_early" in line)
        )
        if retries > self._retries.get(observer, retries) and self.missing is not None:
            self.misses.append(PeerMiss(self._clock(), observer, self.missing))
        self._retries[observer] = int(retries)


class WitnessWatch:
    """Reads the witness files while engines write them."""

    def __init__(self, witness: Witness, wall_clock_zero: float) -> None:
        """Args: `wall_clock_zero` is the Unix time (s) of the start of the schedule."""
        self._witness = witness
        self._zero = wall_clock_zero
        self.sightings: list[Sighting] = []

    async def read(self) -> int:
        """Read the new records; return the number of violations so far."""
        testimony, fresh = await asyncio.to_thread(self._witness.read)
        self.sightings += [self._sighting(sighting) for sighting in fresh if sighting.required is not None]
        return len(testimony.violations)

    async def started(self) -> frozenset[str]:
        """Return the ids of the requests that an engine started."""
        testimony, _ = await asyncio.to_thread(self._witness.read)
        return frozenset(testimony.started)

    def _sighting(self, seen: WitnessSighting) -> Sighting:
        required = tuple(sorted(seen.required or ()))
        return Sighting(seen.request_id or "", seen.t - self._zero, seen.region, seen.endpoint, required)


async def every(pause_s: float, do: Callable[[], Awaitable[None]]) -> None:
    """Call `do` until cancelled, with a pause of `pause_s` (s) after each call."""
    while True:
        await do()
        await asyncio.sleep(pause_s)
