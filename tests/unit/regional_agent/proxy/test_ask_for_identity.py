"""The request for a response without content coding."""

from __future__ import annotations

import pytest

from penstock.http.header_rules import TO_ENGINE
from regional_agent.http.messages import Request, request_lines_to_upstream
from regional_agent.proxy.upstream_request import ask_for_identity

Headers = list[tuple[bytes, bytes]]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "headers",
    [
        [(b"accept-encoding", b"gzip, deflate"), (b"x", b"accept-encoding: gzip, deflate")],
        [(b"accept-encoding", b"gzip"), (b"x", b"1"), (b"accept-encoding", b"br")],
        [(b"accept-encoding", b"identity"), (b"x", b"1")],
        [(b"accept-encoding", b"gzip, deflate, br, zstd"), (b"x", b"1")],
        [(b"x", b"1")],
    ],
)
def test_every_accept_encoding_becomes_identity_and_nothing_else_changes(headers: Headers, cached: bool) -> None:
    request = Request()
    request.headers = list(headers)
    request.index()
    if cached:
        request.upstream_lines = request_lines_to_upstream(request, TO_ENGINE, b"http", b"a")
    ask_for_identity(request)
    lines = request.upstream_lines or request_lines_to_upstream(request, TO_ENGINE, b"http", b"a")
    wanted = [(name, b"identity" if name == b"accept-encoding" else value) for name, value in headers]
    assert lines.split(b"\r\n")[2:-1] == [b"%b: %b" % header for header in wanted]
    assert (request.headers, request.by_name) == (wanted, dict(wanted))
    assert headers[0][1] != b"identity" or request.headers == headers
