"""An engine's log of KV events, which is replayed over ZeroMQ as by vLLM 0.32."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

BLOCK = 4
"""Tokens per block."""


def stored(names: list[int], parent: int | None, tokens: list[int]) -> dict[str, object]:
    """The event of blocks that were stored in the cache."""
    return {
        "type": "BlockStored",
        "block_hashes": names,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": BLOCK,
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }


def removed(*names: int) -> dict[str, object]:
    """The event of blocks that were evicted."""
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU", "group_idx": 0}


def batch(*events: Mapping[str, object]) -> bytes:
    """A batch of events, encoded as published."""
    return msgspec.msgpack.encode([1.5, list(events), 0])


class KvEventPublisher:
    """Serves replay requests on a free loopback port, or on `port`."""

    def __init__(self, port: int = 0) -> None:
        """Create a publisher with an empty log, and listen."""
        self.log: list[bytes] = []
        self._socket: Any = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.port = port or self._socket.bind_to_random_port("tcp://127.0.0.1")
        if port:
            self._socket.bind(f"tcp://127.0.0.1:{port}")
        self._task = asyncio.create_task(self._answer())

    def publish(self, *events: Mapping[str, object]) -> None:
        """Append a batch to the log."""
        self.log.append(batch(*events))

    async def _answer(self) -> None:
        while True:
            client, _, start = await self._socket.recv_multipart()
            for number in range(int.from_bytes(start, "big"), len(self.log)):
                await self._socket.send_multipart([client, b"", number.to_bytes(8, "big"), self.log[number]])
            await self._socket.send_multipart([client, b"", (-1).to_bytes(8, "big", signed=True), b""])

    async def close(self) -> None:
        """Stop the publisher and release the port."""
        self._task.cancel()
        (ended,) = await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
        assert isinstance(ended, asyncio.CancelledError), f"the publisher ended early: {ended!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        await self.close()
