"""Response headers that do not reach clients."""

from __future__ import annotations

import pytest

from penstock.http.header_rules import response_lines_to_client

IDENTITY = (
    *(b"server", b"via", b"alt-svc", b"forwarded", b"proxy-status", b"report-to", b"x-served-by", b"x-powered-by"),
    *(b"x-backend", b"x_backend_server", b"x-upstream-addr", b"x-pod-name", b"x-envoy-upstream-host"),
    *(b"x-forwarded-server", b"x-accel-redirect", b"server-timing", b"traceparent", b"sourcemap"),
)


@pytest.mark.parametrize("from_peer", [False, True])
def test_no_header_that_names_a_server_passes(from_peer: bool) -> None:
    headers = [(name, b"gpu-17.internal") for name in IDENTITY] + [(b"x-model-version", b"3"), (b"set-cookie", b"a=b")]
    lines = response_lines_to_client(headers, dict(headers), from_peer=from_peer)
    assert lines == [b"x-model-version: 3\r\n", b"set-cookie: a=b\r\n"]
