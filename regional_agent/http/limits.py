"""Everything a client or an engine can make an agent hold or wait for, and how much of it is allowed."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of one listener and of the exchanges that begin there."""

    # what a client may send

    max_head_bytes: int = 64 * 1024
    """Request line and headers together."""
    max_headers: int = 128
    max_body_bytes: int = 512 * 1024 * 1024
    """A larger body is refused with 413, from its Content-Length where it has one."""
    kept_body_bytes: int = 16 * 1024 * 1024
    """This much of a body is kept so that the request can be sent again elsewhere; of a larger one the rest is passed
    on as it comes, and what was passed on is not sent again. JSON must name its model within this much."""
    max_kept_bytes: int = 1024 * 1024 * 1024
    """What all bodies above 64 KiB that are kept at one time may take together; beyond it they are refused with 429."""
    max_pipelined: int = 16
    """Requests parsed ahead on one connection before reading stops."""

    # how long a client may take

    head_timeout_s: float = 10.0
    """A head that has begun must be whole within this (s)."""
    body_timeout_s: float = 20.0
    """A body may take this long (s), and a second more for each `slowest_body_bytes_per_s` received; but not stop for
    `stall_timeout_s`, nor take longer than `request_timeout_s` before its request is handled."""
    slowest_body_bytes_per_s: int = 1024
    idle_timeout_s: float = 75.0
    """A connection without a request is closed after this long (s)."""
    write_stall_timeout_s: float = 60.0
    """A client that takes nothing of what is written to it for this long (s) is cut off."""

    # how many

    max_connections: int = 32_768
    """Connections at once, TLS handshakes counted; more are answered 429 and closed; many more, and those over TLS, are
    just closed. Fewer where the process may have fewer open files: two for each connection, and some besides."""
    max_connections_per_address: int | None = None
    """Connections at once from one client address (of IPv6, from one /64); null is a quarter of all that there may be.
    Trusted proxies are exempt. A balancer or NAT that is none and hides its clients' addresses is one address."""

    # how long an engine may take

    request_timeout_s: float = 600.0
    """From a request to the end of its answer (s); a client may ask for less with x-request-timeout-ms."""
    first_byte_timeout_s: float = 300.0
    """An engine must begin to answer within this (s)."""
    stall_timeout_s: float = 60.0
    """A stream in which nothing comes for this long (s, and up to a twentieth more) is broken off, and an upload of
    which nothing comes, or is taken."""
    tunnel_idle_timeout_s: float = 300.0
    """A tunnel (WebSocket) in which nothing moves either way for this long (s) is closed."""

    # going away

    idle_linger_s: float = 5.0
    """While draining, an idle connection stays open this long (s), for a request that is already on its way."""
