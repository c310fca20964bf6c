"""Clients of the endpoint picker that cost it CPU time or memory, and send no requests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import pytest

from regional_agent.http.limits import Limits
from regional_agent.picker import http2_frames as http2
from regional_agent.picker.flood_limits import MAX_EMPTY_CALLS, MAX_IDLE_FRAMES, MAX_WAITED_SWEEPS
from regional_agent.picker.grpc_connection import GrpcConnection
from regional_agent.picker.grpc_stream import INTERNAL
from regional_agent.picker.picker_server import PickerServer
from tests.support.agents import running_agent
from tests.support.picker_streams import parts_of
from tests.unit.regional_agent.picker.test_grpc_connection import MIB, OPENED, Client, raw

CALM = http2.ENHANCE_YOUR_CALM
WINDOW = b"\0\4" + bytes(4)
"""INITIAL_WINDOW_SIZE 0 as a setting."""


def client_of(answer_bytes: int = 0, window_bytes: int = MIB) -> Client:
    client = Client(window_bytes)
    client.is_raw = True
    client.service.answer_bytes = answer_bytes
    client.written = b""
    return client


def opened(stream: int) -> bytes:
    return raw(http2.HEADERS, b"\x04\x01/", flags=http2.END_HEADERS, stream=stream)


@pytest.mark.parametrize(
    "frame",
    [
        raw(http2.DATA),
        raw(http2.PING, bytes(8), stream=0),
        raw(http2.SETTINGS, stream=0),
        raw(http2.WINDOW_UPDATE, b"\0\0\0\1", stream=0),
        raw(http2.PRIORITY, bytes(5)),
        raw(99),
    ],
)
def test_frames_without_data_are_limited(frame: bytes) -> None:
    client = client_of()
    client.server.data_received(OPENED + raw(http2.DATA, b"\0"))
    client.server.data_received(frame * (MAX_IDLE_FRAMES - 10))
    client.server.sweep()
    client.server.data_received(frame * (MAX_IDLE_FRAMES - 10))
    assert not client.aborted, "another interval"
    client.server.data_received(frame * 20)
    assert client.aborted
    assert client.written.endswith(http2.goaway_frame(1, CALM))
    assert client.service.closed == 1


def test_the_frames_of_calls_are_not_limited() -> None:
    client = client_of()
    permissions = raw(http2.WINDOW_UPDATE, b"\0\0\0\1", stream=0) * 5
    for stream in range(1, MAX_IDLE_FRAMES // 2, 2):
        message, end = raw(http2.DATA, bytes(5), stream=stream), raw(http2.RST_STREAM, bytes(4), stream=stream)
        client.server.data_received(opened(stream) + message + permissions + end)
    assert not client.aborted
    assert client.server.streams == 0


@pytest.mark.parametrize("end", ["reset", "ended", "compressed"])
def test_calls_that_end_before_their_first_message_are_limited(end: str) -> None:
    client = client_of()
    for number in range(1, 4 * MAX_EMPTY_CALLS, 2):
        if client.aborted:
            break
        frames = {
            "reset": opened(number) + raw(http2.RST_STREAM, bytes(4), stream=number),
            "ended": raw(http2.HEADERS, b"\x04\x01/", flags=http2.END_HEADERS | http2.END_STREAM, stream=number),
            "compressed": opened(number) + raw(http2.DATA, b"\1" + bytes(4), stream=number),
        }
        client.server.data_received(frames[end])
    assert client.aborted
    assert client.service.calls == client.service.closed == MAX_EMPTY_CALLS + 1


def test_the_cost_of_settings_and_windows_does_not_grow_with_the_streams() -> None:
    client = client_of(answer_bytes=10, window_bytes=0)
    client.service.max_streams = 1000
    for number in range(1, 2000, 2):
        client.server.data_received(opened(number) + raw(http2.DATA, bytes(5), stream=number))
    began = time.process_time()
    client.server.data_received(raw(http2.SETTINGS, WINDOW * 2730, stream=0) * 10)
    client.server.data_received(raw(http2.WINDOW_UPDATE, b"\0\0\0\1", stream=0) * 5000)
    assert time.process_time() - began < 0.3  # seconds if each setting and each permission visits all streams
    client.written = b""
    client.server.data_received(raw(http2.SETTINGS, b"\0\4\0\0\1\0", stream=0))
    assert client.written.count(b"\0\0\0\0\x0a") == 1000, "all streams continue"


def test_the_cost_of_a_header_block_does_not_grow_with_the_square_of_its_parts() -> None:
    client = client_of()
    began = time.process_time()
    for number in (1, 3, 5, 7, 9):
        last = raw(http2.CONTINUATION, flags=http2.END_HEADERS, stream=number)
        part = raw(http2.CONTINUATION, stream=number)
        client.server.data_received(raw(http2.HEADERS, b"\x04\x01/", stream=number) + part * 1815 + last)
        client.server.sweep()
    assert client.service.calls == 5
    assert time.process_time() - began < 0.2  # 0.5 s with the square


def test_streams_and_connections_without_a_message_end() -> None:
    client = client_of(answer_bytes=10, window_bytes=0)
    client.server.data_received(opened(1) + opened(3) + opened(5))
    client.server.data_received(raw(http2.DATA, b"\0", stream=3) + raw(http2.DATA, bytes(5), stream=5))
    for _ in range(MAX_WAITED_SWEEPS):
        client.server.sweep()
    assert client.server.streams == 3
    client.server.sweep()
    assert client.server.streams == 1, "the stream with a message remains"
    assert client.written.endswith(http2.reset_frame(1, http2.CANCEL) + http2.reset_frame(3, http2.CANCEL))
    silent = client_of()
    silent.server = GrpcConnection(silent.service)
    silent.server.connection_made(cast(Any, silent))
    silent.server.data_received(http2.PREFACE[:5])
    for _ in range(MAX_WAITED_SWEEPS + 1):
        assert not silent.aborted
        silent.server.sweep()
    assert silent.aborted


async def test_an_error_reaches_a_client_that_reads_no_messages() -> None:
    client = client_of(answer_bytes=100, window_bytes=0)
    client.server.data_received(OPENED + raw(http2.DATA, bytes(5)))
    assert client.server.buffered_bytes == client.service.buffered_bytes == 105
    assert client.service.stream is not None
    client.service.stream.end(INTERNAL)
    client.server.sweep()
    assert client.service.closed == 1
    assert client.server.buffered_bytes == client.service.buffered_bytes == 0


def test_a_refused_connection_processes_nothing() -> None:
    client = client_of()
    client.server.abort()
    client.server.data_received(OPENED)
    assert client.service.calls == 0


async def test_the_connection_that_holds_most_ends_when_the_memory_for_messages_is_full(tmp_path: Path) -> None:
    limits = Limits(max_kept_bytes=100_000, max_json_bytes=60_000)
    async with running_agent(tmp_path, [], limits=limits) as agent:
        server = PickerServer(parts_of(agent), lambda: None)
        path = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        clients = []
        for parts in (1, 3, 2):
            client = client_of()
            client.server = GrpcConnection(server)
            client.server.connection_made(cast(Any, client))
            client.server.data_received(http2.PREFACE + http2.settings_frame({}))
            clients.append(client)
            for number in range(1, 2 * parts, 2):
                client.server.data_received(
                    raw(http2.HEADERS, bytes([0x04, len(path)]) + path, flags=http2.END_HEADERS, stream=number)
                    + raw(http2.DATA, b"\0\0\0\xff\xff" + bytes(16_000), stream=number)
                )
        assert [client.aborted for client in clients] == [False] * 3
        clients[0].server.data_received(raw(http2.DATA, bytes(16_000)))
        assert [client.aborted for client in clients] == [False, True, False]
        assert sum(client.server.buffered_bytes for client in clients) < 100_000
        for client in clients:
            client.server.connection_lost(None)
        assert sum(client.server.buffered_bytes for client in clients) == 0
