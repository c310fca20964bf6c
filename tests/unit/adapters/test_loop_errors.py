"""A client that disconnects causes no error of the daemon; a defect is logged with its traceback."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop

from adapters.loop_errors import report_loop_error
from tests.support.certificates import make_authority, make_certificate

MESSAGE = "Fatal error on SSL protocol"


async def error_of_a_closed_handle() -> Exception:
    """The error of a write to a connection whose handle uvloop has closed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    lost = asyncio.Event()

    class Client(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            lost.set()

    transport, _ = await loop.create_connection(Client, *server.sockets[0].getsockname())
    transport.abort()
    await lost.wait()
    await asyncio.sleep(0)
    server.close()
    try:
        transport.write(b"more")
    except RuntimeError as error:
        return error
    raise AssertionError("the handle is open")


def error_of_an_empty_backlog() -> Exception:
    try:
        exec(compile("[][0]", "uvloop/sslproto.pyx", "exec"))
    except IndexError as error:
        return error
    raise AssertionError


def report(*contexts: dict[str, Any]) -> None:
    loop = asyncio.new_event_loop()
    for context in contexts:
        report_loop_error(loop, context)
    loop.close()


def test_a_write_to_a_client_that_has_disconnected_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    errors = (uvloop.run(error_of_a_closed_handle()), error_of_an_empty_backlog())
    with structlog.testing.capture_logs() as lines:
        report(*({"message": MESSAGE, "exception": error} for error in errors))
    assert [(line["log_level"], "exc_info" in line) for line in lines] == [("debug", False)] * 2
    assert caplog.records == []


def test_other_errors_are_logged_with_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    closed = uvloop.run(error_of_a_closed_handle())
    own = ValueError("a defect")
    for context in (
        {"message": "another", "exception": closed},
        {"message": MESSAGE, "exception": own},
        {"message": "x"},
    ):
        report_loop_error(asyncio.new_event_loop(), context)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    assert caplog.records[1].exc_info is not None
    assert caplog.records[1].exc_info[1] is own


def test_an_error_of_a_protocol_within_tls_is_logged_with_its_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_authority(tmp_path, "ca")
    make_certificate(tmp_path, "ca", "server")
    own = IndexError("a defect")

    class Server(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            raise own

    async def body() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(report_loop_error)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        server = await loop.create_server(Server, "127.0.0.1", 0, ssl=tls)
        trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        trust.check_hostname = False
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=trust)
        writer.write(b"hello")
        await reader.read()
        writer.close()
        server.close()

    uvloop.run(body())
    (record,) = caplog.records
    assert (record.levelname, record.exc_info is not None and record.exc_info[1]) == ("ERROR", own)
    assert record.message.startswith(MESSAGE)
