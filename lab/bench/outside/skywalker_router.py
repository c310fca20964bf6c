"""A router over several regions by SkyWalker's rule (Xia et al., EuroSys 2026), as a program that others can be
compared with. Run by `python -m lab.bench.outside.skywalker_router --config FILE`.

One process has the entries of all regions. It therefore knows the state of each region exactly and at once, which
balancers in several regions do not: the paper's design cannot do better. A request that another region serves is
delayed by the round trip to it.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import uvloop

from adapters.servers.free_ports import LOOPBACK
from lab.bench.peers.peer import READY_PATH
from lab.replay.chat_request import BYTES_PER_TOKEN
from lab.simulate.baselines.balancer import Arrival, EngineReport, Probe
from lab.simulate.baselines.inference import SkyWalker, region_by_skywalker
from lab.traces.trace import BLOCK_TOKENS

BLOCK_BYTES = BLOCK_TOKENS * BYTES_PER_TOKEN

MAX_HEAD_BYTES = 64 * 1024


class RegionConfig(msgspec.Struct, frozen=True):
    """One region."""

    port: int
    """Loopback port for clients of the region."""
    engines: dict[int, int]
    """Maximum number of running requests of each engine, by its loopback port."""
    rtt_ms: dict[str, float]
    """Round trips to the other regions by name."""


class RouterConfig(msgspec.Struct, frozen=True):
    """The configuration of the router."""

    regions: dict[str, RegionConfig]


class _Region:
    """The engines of a region, as its balancer sees them (`PoolView`)."""

    def __init__(self, config: RegionConfig) -> None:
        self.ports = list(config.engines)
        self.size = len(self.ports)
        self.weights = (1.0,) * self.size
        self._slots = list(config.engines.values())
        self._in_flight = [0] * self.size
        self.balancer = SkyWalker(self, Random(1))

    def in_flight(self, index: int) -> int:
        """As `PoolView.in_flight`."""
        return self._in_flight[index]

    def report(self, index: int) -> EngineReport:
        """As `PoolView.report`."""
        running = min(self._in_flight[index], self._slots[index])
        return EngineReport(running, self._in_flight[index] - running, 0.0)

    def probe(self, index: int) -> Probe:
        """As `PoolView.probe`."""
        raise NotImplementedError("the rule does not probe engines")

    def add(self, index: int, count: int) -> None:
        self._in_flight[index] += count


class _Place(NamedTuple):
    """The engine that a request was assigned to."""

    region: str
    engine: int
    """Its index within the region."""


class Router:
    """The router of all regions."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._regions = {name: _Region(region) for name, region in config.regions.items()}
        self._balancers = {name: region.balancer for name, region in self._regions.items()}
        self._waiting: deque[tuple[str, Arrival, asyncio.Future[_Place]]] = deque()

    async def start(self) -> list[asyncio.Server]:
        """Listen on the entries of all regions."""
        return [
            await asyncio.start_server(partial(self._client, name), LOOPBACK, region.port, limit=MAX_HEAD_BYTES)
            for name, region in self._config.regions.items()
        ]

    async def _client(self, origin: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._request(origin, reader, writer)
        writer.close()

    async def _request(self, origin: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET %b " % READY_PATH.encode()):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            return
        lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
        length = next((int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        loop = asyncio.get_running_loop()
        arrival = Arrival(length // BYTES_PER_TOKEN, tuple(_blocks(body)), loop.time())
        place = None if self._waiting else self._take_place(origin, arrival)
        if place is None:
            given: asyncio.Future[_Place] = loop.create_future()
            self._waiting.append((origin, arrival, given))
            place = await given
        if place.region != origin:
            await asyncio.sleep(self._config.regions[origin].rtt_ms[place.region] / 1000)
        await self._relay(place, arrival, b"\r\n".join([*lines, b"connection: close", b"", b""]) + body, writer)

    async def _relay(self, place: _Place, arrival: Arrival, request: bytes, writer: asyncio.StreamWriter) -> None:
        region, has_begun, to_engine = self._regions[place.region], False, None
        try:
            engine, to_engine = await asyncio.open_connection(LOOPBACK, region.ports[place.engine])
            to_engine.write(request)
            writer.write(await engine.readuntil(b"\r\n\r\n"))
            while data := await engine.read(65_536):
                if not has_begun:
                    has_begun = True
                    region.balancer.first_token(place.engine, arrival)
                    self._serve_waiting()
                writer.write(data)
                await writer.drain()
        finally:
            if to_engine is not None:
                to_engine.close()
            if not has_begun:
                region.balancer.first_token(place.engine, arrival)
            region.add(place.engine, -1)
            self._serve_waiting()

    def _take_place(self, origin: str, arrival: Arrival) -> _Place | None:
        name = region_by_skywalker(origin, self._balancers, arrival, self._nearest_first)
        if name is None:
            return None
        region = self._regions[name]
        index = region.balancer.choose(arrival, arrival.at)
        assert index is not None, "the rule chose a region with an endpoint that has no pending request"
        region.balancer.sent(index, arrival, arrival.at)
        region.add(index, 1)
        return _Place(name, index)

    def _nearest_first(self, origin: str, names: frozenset[str]) -> list[str]:
        rtt_ms = self._config.regions[origin].rtt_ms
        return sorted(names, key=lambda name: rtt_ms.get(name, 0.0))

    def _serve_waiting(self) -> None:
        while self._waiting:
            origin, arrival, given = self._waiting[0]
            place = self._take_place(origin, arrival)
            if place is None:
                return
            self._waiting.popleft()
            given.set_result(place)


def _blocks(body: bytes) -> Iterator[int]:
    """Yield an id for each block of the prompt, which depends on all text up to its end."""
    running = blake2b(digest_size=8)
    prompt = body[max(0, body.find(b'"messages"')) :]
    for start in range(0, len(prompt) - BLOCK_BYTES + 1, BLOCK_BYTES):
        running.update(prompt[start : start + BLOCK_BYTES])
        yield int.from_bytes(running.digest(), "big")


def main() -> None:
    """Run the router until it is stopped."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, required=True, help="file with a RouterConfig (JSON)")
    config = msgspec.json.decode(parser.parse_args().config.read_bytes(), type=RouterConfig)

    async def serve() -> None:
        await asyncio.gather(*(server.serve_forever() for server in await Router(config).start()))

    uvloop.run(serve())


if __name__ == "__main__":
    main()
