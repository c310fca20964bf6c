"""Reads the log of KV events of one engine over ZeroMQ, from a replay endpoint such as vLLM's.

A request contains the number of a batch, as 8 bytes (big-endian). The engine sends every retained batch from that
number on, and then an end marker with the number -1. pyzmq is optional: `pip install penstock[kv-events]`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

MAX_READ_BYTES: Final = 32 << 20
"""Size (bytes) of received batches at which a read ends."""

MAX_READ_BATCHES: Final = 20_000
"""Maximum number of batches of one read; vLLM keeps 10,000."""

MAX_MESSAGE_BYTES: Final = 2 << 20
"""Maximum size (bytes) of a message; a connection with a larger message is closed."""

QUEUED_MESSAGES: Final = 1024
"""Maximum number of received messages that pyzmq queues until they are read."""

_END: Final = b"\xff" * 8


class MissingLibrary(Exception):
    """pyzmq is not installed."""


class ReadFailed(Exception):
    """The engine did not respond, or its response is malformed; the message states the reason."""


class KvEventReader:
    """Reads the log of KV events of one engine."""

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
        """Return the batches from number `start` on that the engine retains, with their numbers.

        A read that exceeds `timeout_s` (s) or a size limit returns the batches that have arrived.

        Raises:
            ReadFailed: neither a batch nor the end marker arrived in time, the connection failed, or a message is
                malformed.
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
                # Remaining messages of this response must not be read as the next response.
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
