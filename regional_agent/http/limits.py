"""Limits for the memory, connections and time that clients and engines can take."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one listener and of the requests received there."""

    # sizes of requests

    max_head_bytes: int = 64 * 1024
    """Request line and headers together."""
    max_headers: int = 128
    max_body_bytes: int = 512 * 1024 * 1024
    """A larger body is refused with 413; by its Content-Length where present."""
    kept_body_bytes: int = 16 * 1024 * 1024
    """Bytes of a body that are kept, so that the request can be sent again to another endpoint. A larger body is
    forwarded as it arrives, and its request is not retried. A JSON body must name its model within these bytes."""
    max_kept_bytes: int = 1024 * 1024 * 1024
    """Memory for all kept bodies above 64 KiB together; further ones are refused with 429."""
    max_pipelined: int = 16
    """Requests of one connection that may wait, parsed, before reading stops."""

    # client timeouts

    head_timeout_s: float = 10.0
    """From the first byte of a head to its last (s)."""
    body_timeout_s: float = 20.0
    """For a body (s), plus one second for each `slowest_body_bytes_per_s` received. In addition a body may not stall
    for `stall_timeout_s`, nor take longer than `request_timeout_s` before its request is handled."""
    slowest_body_bytes_per_s: int = 1024
    idle_timeout_s: float = 75.0
    """A connection without a request is closed after this time (s)."""
    write_stall_timeout_s: float = 60.0
    """A connection is closed when its client reads nothing for this time (s)."""

    # connections

    max_connections: int = 32_768
    """Open connections, TLS handshakes included. Further ones are refused with 429 and closed; an eighth above the
    limit, and for TLS, they are closed without a response. Reduced where the process's limit of open files is lower:
    each connection needs two."""
    max_connections_per_address: int | None = None
    """Open connections from one client address (for IPv6, from one /64); null means a quarter of `max_connections`.
    Trusted proxies are exempt. Clients behind any other load balancer or NAT count as one address."""

    # engine timeouts

    request_timeout_s: float = 600.0
    """From a request to the end of its response (s); clients can lower it with x-request-timeout-ms."""
    first_byte_timeout_s: float = 300.0
    """Until an engine's response begins (s)."""
    stall_timeout_s: float = 60.0
    """A response stream without data for this time (s, plus up to a twentieth) is aborted, and so is an upload of which
    nothing is received, or nothing is accepted by the engine."""
    tunnel_idle_timeout_s: float = 300.0
    """A tunnel (WebSocket) without data in either direction for this time (s) is closed."""

    # draining

    idle_linger_s: float = 5.0
    """While draining, an idle connection stays open for this time (s), for a request that is already in transit."""
