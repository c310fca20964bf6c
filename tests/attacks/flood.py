"""A flood of one kind at one port, in a process of its own so that the measuring client is not delayed by the attacker.

Usage: python -m tests.attacks.flood HOST PORT KIND
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from adapters.servers.free_ports import LOOPBACK
from lab import debian_packages
from lab.open_files import allow_many_open_files

TASKS = 64
"""Number of attackers that open connections at the same time."""

HALF_OPEN = 5_000

HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)
"""The beginning of a TLS handshake, whose rest never arrives."""

REQUEST = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"

SLOW_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"


SLOW_MODES = ("-H", "-B", "-X")
"""Modes of slowhttptest: slow heads, slow bodies, slow reads."""

SLOW_CONNECTIONS = 1_500
"""Number of connections of each mode, opened within 3 s."""


def address(number: int) -> str:
    """One of 250 addresses of one prefix, none of which is a trusted proxy."""
    return f"127.9.9.{1 + number % 250}"


async def _open(host: str, port: int, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(host, port, local_addr=(address(number), 0), limit=1 << 16)


async def connections(host: str, port: int, number: int) -> None:
    """Open connections and reset them."""
    _, writer = await _open(host, port, number)
    writer.transport.abort()


async def requests(host: str, port: int, number: int) -> None:
    """Send pipelined requests, and read the responses, until the server closes the connection."""
    reader, writer = await _open(host, port, number % 2)
    try:
        while not writer.is_closing():
            writer.write(REQUEST * 16)
            if not await reader.read(1 << 16):
                return
    finally:
        writer.transport.abort()


async def hold(host: str, port: int, number: int, first: bytes) -> None:
    """Hold one connection that sends a byte each second after `first`."""
    reader, writer = await _open(host, port, number)
    try:
        writer.write(first)
        while not reader.at_eof() and not writer.is_closing():
            await asyncio.sleep(1.0)
            writer.write(b"a")
    finally:
        writer.transport.abort()


async def handshakes(host: str, port: int, number: int) -> None:
    """Hold a handshake half-open."""
    await hold(host, port, number, HELLO)


async def slow(host: str, port: int, number: int) -> None:
    """Hold an unfinished head."""
    await hold(host, port, number, SLOW_HEAD)


async def slowhttptest(host: str, port: int, number: int) -> None:
    """Run slowhttptest in one of its modes, through a relay, since it cannot choose the address of a client."""
    opened = itertools.count()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there_reader, there = await _open(host, port, next(opened))
            await asyncio.wait(
                [asyncio.create_task(_copy(reader, there)), asyncio.create_task(_copy(there_reader, writer))],
                return_when=asyncio.FIRST_COMPLETED,
            )
            there.transport.abort()
        writer.transport.abort()

    server = await asyncio.start_server(relay, LOOPBACK, 0, backlog=SLOW_CONNECTIONS)
    url = f"http://{LOOPBACK}:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
    options = ("-c", str(SLOW_CONNECTIONS), "-r", "500", "-i", "1", "-l", "60", "-v", "0", "-u", url)
    process = await asyncio.create_subprocess_exec(
        debian_packages.program("slowhttptest") or "slowhttptest", SLOW_MODES[number], *options,
        stdout=asyncio.subprocess.DEVNULL, env=debian_packages.environment(),
    )  # fmt: skip
    await process.wait()
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


KINDS: dict[str, tuple[Callable[[str, int, int], Awaitable[None]], int, float]] = {
    "connections": (connections, TASKS, 0.0),
    "requests": (requests, TASKS, 0.01),
    "handshakes": (handshakes, HALF_OPEN, 1.0),
    "slow": (slow, HALF_OPEN, 1.0),
    "slowhttptest": (slowhttptest, len(SLOW_MODES), 0.0),
}
"""Attack, number of attackers, and the time (s) after which one begins again."""


async def _attacker(
    attack: Callable[[str, int, int], Awaitable[None]], target: tuple[str, int, int], pause_s: float
) -> None:
    while True:
        with suppress(OSError):
            await attack(*target)
        await asyncio.sleep(pause_s)


async def main(host: str, port: int, kind: str) -> None:
    """Attack until the process is ended."""
    allow_many_open_files()
    attack, count, pause_s = KINDS[kind]
    await asyncio.gather(*(_attacker(attack, (host, port, number), pause_s) for number in range(count)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
