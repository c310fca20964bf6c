"""Reads the log of KV events of one engine over ZeroMQ, from a replay endpoint as vLLM's.

The request is the number of a batch, as 8 bytes (big-endian); the engine sends each batch that it keeps from this one
on, and then the end, whose number is -1. The library is optional: `pip install penstock[kv-events]`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

MAX_READ_BYTES: Final = 32 << 20
"""Maximum size of the batches of one read."""

MAX_READ_BATCHES: Final = 20_000
"""Maximum number of batches of one read; vLLM keeps 10,000."""

MAX_MESSAGE_BYTES: Final = 2 << 20
"""A connection that sends a larger message is closed."""

QUEUED_MESSAGES: Final = 1024
"""Messages that the library keeps until they are read."""

_END: Final = b"\xff" * 8


class MissingLibrary(Exception):
    """pyzmq is not installed."""


class ReadFailed(Exception):
    """The engine did not answer, or not as it should; the message states why."""


class KvEventReader:
    """Reads one engine's log."""

    def __init__(self, host: str, port: int) -> None:
        """Create a reader that is not connected.

        Raises:
            MissingLibrary: pyzmq is not installed.
        """
        try:
            import zmq.asyncio
        except ImportError:
            raise MissingLibrary(
                "kv_events_port needs pyzmq, which is not installed; run: pip install 'penstock[kv-events]'"
            ) from None
        self._zmq: Any = zmq
        self._address = f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"
        self._socket: Any = None

    async def read(self, start: int, timeout_s: float) -> list[tuple[int, bytes]]:
        """The batches from number `start` on that the engine keeps, with their numbers.

        A read that takes longer than `timeout_s` (s) after the first batch, or is too large, returns what has arrived.

        Raises:
            ReadFailed: no batch arrived and no end, or a message is malformed.
        """
        batches: list[tuple[int, bytes]] = []
        size_bytes, ended = 0, False
        try:
            async with asyncio.timeout(timeout_s):
                await self._connected().send_multipart([b"", start.to_bytes(8, "big")])
                while size_bytes < MAX_READ_BYTES and len(batches) < MAX_READ_BATCHES:
                    frames = await self._socket.recv_multipart()
                    if len(frames) < 2 or len(frames[-2]) != 8:
                        raise ReadFailed("the engine's answer is not that of a replay endpoint of KV events")
                    if frames[-2] == _END:
                        ended = True
                        break
                    batches.append((int.from_bytes(frames[-2], "big"), frames[-1]))
                    size_bytes += len(frames[-1])
        except TimeoutError:
            if not batches:
                raise ReadFailed(f"{self._address} did not answer within {timeout_s} s") from None
        except self._zmq.ZMQError as error:
            raise ReadFailed(f"{self._address}: {error}") from None
        finally:
            if not ended:
                # The rest of this answer must not be taken for the next one.
                self.close()
        return batches

    def close(self) -> None:
        """Close the connection; the next read opens a new one."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None

    def _connected(self) -> Any:
        if self._socket is None:
            zmq = self._zmq
            opened = self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            opened.setsockopt(zmq.IPV6, 1)
            opened.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
            opened.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
            opened.setsockopt(zmq.LINGER, 0)
            opened.connect(self._address)
        return self._socket
