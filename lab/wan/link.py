"""A link: one listener that forwards connections to a target with a round trip and a fault."""

from __future__ import annotations

import asyncio
import socket
from random import Random

import msgspec

from lab.wan.crossing import Crossing
from lab.wan.wan_config import Fault, FaultMode, LinkPlan, WanConfigError

BACKLOG = 1024

MAX_CROSSINGS = 8192
"""Maximum number of open connections of one link; further connections are reset."""


class LinkStatus(msgspec.Struct, frozen=True):
    """Configuration and state of a link."""

    link: str
    origin: str = msgspec.field(name="from")
    to: str
    host: str
    port: int
    target: str
    rtt_ms: float
    fault: Fault
    crossings: int
    """Number of open connections."""
    taken: int
    """Number of connections accepted since the start."""


class Link:
    """Forwards connections to one target with the round trip of the plan."""

    def __init__(self, plan: LinkPlan, host: str, rng: Random) -> None:
        """Args: `host` is the address to listen on; `rng` draws jitter."""
        self.plan = plan
        self.target = (plan.target_host, plan.target_port)
        self._host = host
        self._rng = rng
        self._fault = Fault()
        self._crossings: set[Crossing] = set()
        self._taken = 0
        self._reserved_port: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Port that the link listens on."""
        assert self._reserved_port is not None, "not listening"
        return int(self._reserved_port.getsockname()[1])

    @property
    def one_way_s(self) -> float:
        """Half the current round trip (s), without jitter."""
        return (self.plan.rtt_ms + self._fault.extra_rtt_ms) / 2000.0

    @property
    def drops_data(self) -> bool:
        """Whether data sent now is dropped."""
        return self._fault.mode is FaultMode.BLACKHOLE

    def delay_s(self) -> float:
        """Delay (s) of data sent now, jitter included."""
        jitter_ms = self._fault.jitter_ms
        return self.one_way_s + (self._rng.random() * jitter_ms / 1000.0 if jitter_ms else 0.0)

    async def start(self) -> None:
        """Listen.

        Raises:
            WanConfigError: the port is in use.
        """
        self._reserved_port = _reserve_port(self.plan.name, self._host, self.plan.port)
        await self._listen()

    async def apply(self, fault: Fault) -> None:
        """Replace the fault of the link.

        Connections that lost bytes to a black hole are reset when the black hole ends, because bytes after a gap must
        not be delivered.
        """
        before, self._fault = self._fault, fault
        if fault.mode is FaultMode.CUT:
            await self._stop_listening()
            self._reset(list(self._crossings))
        elif before.mode is FaultMode.CUT:
            await self._listen()
        if before.mode is FaultMode.BLACKHOLE and fault.mode is FaultMode.NONE:
            self._reset([crossing for crossing in self._crossings if crossing.lost_bytes])

    async def close(self) -> None:
        """Stop listening and reset every connection."""
        await self._stop_listening()
        self._reset(list(self._crossings))
        if self._reserved_port is not None:
            self._reserved_port.close()

    def status(self) -> LinkStatus:
        """Return the configuration and state of the link."""
        return LinkStatus(
            link=self.plan.name,
            origin=self.plan.origin,
            to=self.plan.to,
            host=self._host,
            port=self.port,
            target=f"{self.plan.target_host}:{self.plan.target_port}",
            rtt_ms=self.plan.rtt_ms,
            fault=self._fault,
            crossings=len(self._crossings),
            taken=self._taken,
        )

    async def _listen(self) -> None:
        listener = _shared_socket(self._host)
        try:
            listener.bind((self._host, self.port))
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._accept, sock=listener, backlog=BACKLOG)
        except BaseException:
            listener.close()
            raise

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            # uvloop closes the socket on the next iteration of the event loop and accepts connections until then.
            await asyncio.sleep(0)

    def _accept(self) -> asyncio.Protocol:
        self._taken += 1
        crossing = Crossing(self, self._crossings.discard)
        self._crossings.add(crossing)
        if len(self._crossings) > MAX_CROSSINGS:
            asyncio.get_running_loop().call_soon(crossing.reset)
        return crossing.client

    def _reset(self, crossings: list[Crossing]) -> None:
        for crossing in crossings:
            crossing.reset()


def _reserve_port(name: str, host: str, port: int) -> socket.socket:
    """Reserve the port with a socket that does not listen, so that a cut link refuses connections."""
    reserved = _shared_socket(host)
    try:
        with socket.socket(reserved.family, socket.SOCK_STREAM) as candidate:
            # Sockets with SO_REUSEPORT share a port, so only a socket without it detects another WAN on the port.
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind((host, port))
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise WanConfigError(
            f"link {name!r}: cannot listen on {host}:{port}: {error.strerror}; give another port, or 0 for any"
        ) from None
    return reserved


def _shared_socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.setblocking(False)
    return made
