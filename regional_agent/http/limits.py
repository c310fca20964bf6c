"""Limits of the memory, connections and time that clients and engines can use."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one listener and of the requests received there."""

    # sizes of requests

    max_head_bytes: int = 64 * 1024
    """Maximum size of the request line and headers together, in bytes; 64 KiB. A larger head is refused with 431."""
    max_headers: int = 128
    """Maximum number of headers of a request; 128. A request with more is refused with 431."""
    max_body_bytes: int = 512 * 1024 * 1024
    """Maximum size of a request body, in bytes; 512 MiB. A larger body is refused with 413: before it is
    read if it has a Content-Length, else when it exceeds the limit."""
    kept_body_bytes: int = 16 * 1024 * 1024
    """Part of a body other than JSON that is kept in memory, in bytes; 16 MiB. A request whose whole body is kept can
    be sent again to another endpoint. A larger body is forwarded as it arrives, and its request is not retried."""
    max_json_bytes: int = 128 * 1024 * 1024
    """Maximum size of a JSON body, in bytes; 128 MiB. JSON is kept whole before its request is routed, since any part
    of it may name the model, and reading it occupies the agent for one to four milliseconds per MiB. A larger body is
    refused with 413; `max_body_bytes` and `max_kept_bytes` apply too."""
    max_kept_bytes: int = 1024 * 1024 * 1024
    """Memory for all kept bodies above 64 KiB together, in bytes; 1 GiB. When it is full, bodies of other tenants
    displace the largest bodies of the tenant that uses most of it: the requests of displaced bodies are refused with
    429, or, if they have already been sent, cannot be sent again. New bodies of the tenant that uses most of it are
    refused with 429."""
    max_pipelined: int = 16
    """Number of parsed requests of one connection that wait before reading from the connection stops; 16."""

    # client timeouts

    head_timeout_s: float = 10.0
    """Time from the first to the last byte of a request head, in seconds; 10. Also the limit for a TLS handshake."""
    body_timeout_s: float = 20.0
    """Time by which a request body may be late, in seconds; 20. This applies to the first byte, and at any later time
    to the bytes that `min_body_bytes_per_s` requires. A fast start does not extend the time. In addition, a body may
    not take longer than `request_timeout_s` before its request is handled."""
    min_body_bytes_per_s: int = 1024
    """Rate at which a request body has to arrive, in bytes per second; 1024."""
    idle_timeout_s: float = 75.0
    """Time after which a connection without a request is closed, in seconds; 75."""
    write_stall_timeout_s: float = 60.0
    """Time after which a connection whose client reads nothing is closed, in seconds; 60."""

    # connections

    max_connections: int = 32_768
    """Maximum number of open connections, TLS handshakes included; 32 768. Further connections are refused with 429 and
    closed. TLS connections over the limit, and all connections an eighth above the limit, are closed without a
    response. The number is reduced if the process's limit of open files is lower: each connection needs two files."""
    max_connections_per_address: int | None = None
    """Maximum number of open connections from one client address (for IPv6, from one /64); null, the default, means a
    quarter of `max_connections`. Trusted proxies are exempt. Clients behind any other load balancer or NAT count as one
    address."""
    max_connections_per_prefix: int | None = None
    """Maximum number of open connections from one /24 of IPv4 or one /48 of IPv6; null, the default, means half of
    `max_connections`, and at least what one address may have. Trusted proxies are exempt."""
    max_connection_rate_per_address: float | None = 500.0
    """Maximum rate of new connections from one client address (for IPv6, from one /64), per second; 500. Ten seconds of
    it may arrive at once. One /24 of IPv4 or one /48 of IPv6 may open four times as many. Further connections are
    closed without a response, before their TLS handshake. A handshake that the client does not complete counts as 100
    more. Trusted proxies are exempt, and at the peer listener every address that has completed a handshake; null: no
    limit."""
    max_request_rate_per_address: float | None = None
    """Maximum rate of requests from one client address, in the same way; null, the default, means no limit, because all
    clients behind a load balancer that is not a trusted proxy have one address. It is checked every half second: the
    connections of an address above the rate are refused with 429 after the requests that were received, and closed, and
    new ones are closed until the rate permits requests again. Without effect at the peer listener."""

    # engine timeouts

    request_timeout_s: float = 600.0
    """Time from a request to the end of its response, in seconds; 600. A route or a model can replace it, and clients
    can lower it with x-request-timeout-ms."""
    first_byte_timeout_s: float | None = None
    """Time until an engine's response begins, in seconds; null, the default, means 300, and nine tenths of
    request_timeout_s for a response that is not streamed, which begins at its end. A route or a model can replace
    it."""
    stall_timeout_s: float = 60.0
    """Time without data after which a response is aborted, in seconds; 60. For a request with tools it is the time
    until a stream begins, if that is longer: engines may hold back a tool call. Detected up to a twentieth later. Also
    applies to an upload of which the engine reads nothing. A route or a model can replace it."""
    tunnel_idle_timeout_s: float = 300.0
    """Time without data in both directions after which a tunnel (WebSocket) is closed, in seconds; 300."""

    max_tunnel_s: float = 3600.0
    """Time after which a tunnel (WebSocket) is closed even if it transfers data, in seconds; 3600."""

    # draining

    idle_linger_s: float = 5.0
    """Time that an idle connection stays open while the agent drains, in seconds; 5, because a request may be in
    transit."""

    @property
    def json_bytes(self) -> int:
        """Maximum size (bytes) of a JSON body, by all limits."""
        return min(self.max_json_bytes, self.max_body_bytes, self.max_kept_bytes)
