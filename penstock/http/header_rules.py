"""The headers that the proxy forwards, in each direction.

Hop-by-hop headers end at each hop (RFC 9110, section 7.6.1). Headers that start with `x-penstock-` are removed from
client requests, so that a client cannot influence routing. An engine never receives a client's API key, address or
location. It receives `x-forwarded-proto` and `x-forwarded-host`, for applications that generate links to themselves;
values that a client sends for these two headers are used only if the client is one of `trusted_proxies`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import Final

from penstock.health import preemption_notice
from penstock.health.engines import orca
from penstock.routes.route import API_KEY_HEADERS

Header = tuple[bytes, bytes]
"""Name, in lower case, and value."""


def _names(text: bytes) -> frozenset[bytes]:
    return frozenset(text.split())


HOP_BY_HOP: Final = _names(
    b"""connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding
    upgrade"""
)

CONNECTION_NO_EFFECT: Final = HOP_BY_HOP | {b"close", b""}
"""Tokens of the Connection header that name no further header to remove."""

OWN_PREFIX: Final = b"x-penstock-"
"""Headers of Penstock: those of clients are not forwarded."""

REFUSAL_HEADER: Final = b"x-penstock-refusal"
"""Header with the reason code of a refusal, by which an origin detects that a peer refused a request before starting
it."""

ENGINE_FAILED_HEADER: Final = b"x-penstock-engine-failed"
"""Header of a response to a peer or a job, with the number of engines of the serving region that failed the request;
the origin may send it to another region. Followed by BROKE if one broke the connection or stopped responding. Removed
before clients."""

BROKE: Final = b" broke"

TIMEOUT_HEADER: Final = b"x-request-timeout-ms"
"""Header with the time (ms) that the sender waits for the response. Clients may send it; engines and peers receive the
remaining time."""

PRIORITY_HEADER: Final = b"x-penstock-priority"
"""Request header with the highest priority that a client asks for; never above that of its tenant."""

FALLBACK_HEADER: Final = b"x-penstock-fallback"
"""Request header with `none`, by which a client asks that no fallback of its model serves the request."""

REQUEST_ID_HEADER: Final = b"x-request-id"

IDEMPOTENCY_KEY_HEADER: Final = b"idempotency-key"

REPLAYED_HEADER: Final = b"idempotent-replayed"
"""Response header that states, to a request with an Idempotency-Key, whether the response is that of an earlier
request with the key. Stripe's API uses the name
(https://docs.stripe.com/api/idempotent_requests)."""

PER_HOP_HEADERS: Final = _names(
    b"""content-length expect forwarded host sec-websocket-extensions sec-websocket-protocol traceparent via
    x-forwarded-for x-forwarded-host x-forwarded-port x-forwarded-proto x-real-ip"""
) | {REQUEST_ID_HEADER, TIMEOUT_HEADER}
"""Headers that describe one hop. The proxy writes its own values."""

CLIENT_ADDRESS_HEADERS: Final = _names(
    b"""cf-connecting-ip cf-connecting-ipv6 cf-pseudo-ipv4 cloudfront-viewer-address fastly-client-ip true-client-ip
    x-appengine-user-ip x-azure-clientip x-azure-socketip x-client-ip x-cluster-client-ip
    x-envoy-external-address x-original-forwarded-for x-vercel-forwarded-for"""
)
"""Further headers in which CDNs and other proxies send the client's address."""

CREDENTIAL_HEADERS: Final = frozenset({b"authorization", *(name.encode() for name in API_KEY_HEADERS)})
"""Headers with a client's API key, whether or not its route reads them."""

NOT_FOR_ENGINES: Final = PER_HOP_HEADERS | CLIENT_ADDRESS_HEADERS | CREDENTIAL_HEADERS

SINGLE_HEADERS: Final = (
    b"authorization",
    b"content-type",
    b"expect",
    b"host",
    b"inference-header-content-length",
    b"traceparent",
    b"x-model",
    b"x-penstock-route",
    PRIORITY_HEADER,
    FALLBACK_HEADER,
    REQUEST_ID_HEADER,
    TIMEOUT_HEADER,
)
"""Request headers that may occur only once, because servers differ in which of two values they use."""

SESSION_HEADERS: Final = (
    b"x-session-id",
    b"x-dynamo-session-id",
    b"x-claude-code-session-id",
    b"thread-id",
)
"""Headers that name a conversation, as clients send them: OpenCode and others, clients of NVIDIA Dynamo, Claude Code
and Codex (Dynamo's documentation, "Session IDs"). The first of these names counts. Without any, OpenAI's
`prompt_cache_key` is used, and without it, `user`. Not `x-session-affinity`: AIPerf gives each request without a
conversation another value."""

DECIDING_HEADERS: Final = NOT_FOR_ENGINES.union(SINGLE_HEADERS, SESSION_HEADERS, {b"tracestate"})
"""Request headers that this proxy reads, beside those that start with a prefix of DECIDING_PREFIXES. No other header
field may stand for one: neither a name with `_` for `-`, nor its absence by the Connection header."""

DECIDING_PREFIXES: Final = (OWN_PREFIX, b"content-", b"sec-websocket-", b"x-forwarded-")

NO_BODY_STATUSES: Final = frozenset({204, 304})
"""Responses that end with their head (RFC 9110, section 6.4.1)."""

SPECIAL_HEADERS: Final = _names(
    b"""content-encoding expect origin prefer tracestate transfer-encoding upgrade via x-forwarded-host
    x-forwarded-proto"""
) | {PRIORITY_HEADER, FALLBACK_HEADER, TIMEOUT_HEADER}
"""Request headers that this proxy acts on and that most requests do not have."""

MAX_CACHED_NAMES: Final = 1024
MAX_CACHED_NAME_BYTES: Final = 64


class HeaderFilter(dict[bytes, bytes]):
    """The headers that pass in one direction: maps a name to the start of its header line, empty if it does not pass.

    The map is a cache that is filled on demand; few names occur.
    """

    def __init__(self, removed: frozenset[bytes], prefixes: tuple[bytes, ...] = (OWN_PREFIX,)) -> None:
        """Remove the headers `removed`, those with one of `prefixes`, and all hop-by-hop headers."""
        self._removed = removed | HOP_BY_HOP
        self._prefixes = prefixes

    def lines(self, headers: list[Header]) -> list[bytes]:
        """Return the header lines that pass."""
        return [start + value + b"\r\n" for name, value in headers if (start := self[name])]

    def __missing__(self, name: bytes) -> bytes:
        """Return the start of the header line for a name, and cache it within limits.

        `_` counts as `-`, since CGI and WSGI servers do not distinguish them.
        """
        canonical = name.replace(b"_", b"-")
        passes = canonical not in self._removed and not canonical.startswith(self._prefixes)
        if name != canonical and decides(canonical):
            passes = False
        start = name + b": " if passes else b""
        if len(self) < MAX_CACHED_NAMES and len(name) <= MAX_CACHED_NAME_BYTES:
            self[name] = start
        return start


TO_ENGINE: Final = HeaderFilter(NOT_FOR_ENGINES)
"""The request headers for engines, if no location header is configured; else the listener also removes that header."""

ONLY_FROM_THIS_AGENT: Final = _names(
    b"""access-control-allow-credentials access-control-allow-headers access-control-allow-methods
    access-control-allow-origin access-control-allow-private-network access-control-expose-headers
    access-control-max-age content-length request-id"""
) | {REQUEST_ID_HEADER, REPLAYED_HEADER}
"""Response headers that the agent writes, if at all: the policy decides on cross-origin requests."""

SERVER_IDENTITY_HEADERS: Final = _names(
    b"""alt-svc forwarded nel proxy-status report-to reporting-endpoints server server-timing sourcemap traceparent
    tracestate via x-backend x-backend-server x-host x-hostname x-node x-pod-name x-powered-by x-real-ip
    x-served-by x-server x-server-name x-sourcemap x-upstream x-upstream-addr"""
)
"""Response headers that name or locate the servers behind the agent; they pass neither from engines nor from peers."""

SERVER_IDENTITY_PREFIXES: Final = (b"x-accel-", b"x-envoy-", b"x-forwarded-")
"""The same, by the start of the name: headers between a proxy and its servers."""

LIMIT_PREFIXES: Final = (b"x-ratelimit-", b"anthropic-ratelimit-")
"""Response headers about what is left of budgets. The agent writes them; those of engines are about other limits."""

_FROM_ENGINE: Final = HeaderFilter(
    ONLY_FROM_THIS_AGENT | SERVER_IDENTITY_HEADERS | {orca.HEADER, preemption_notice.HEADER},
    (OWN_PREFIX, *LIMIT_PREFIXES, *SERVER_IDENTITY_PREFIXES),
)
_FROM_PEER: Final = HeaderFilter(
    ONLY_FROM_THIS_AGENT | SERVER_IDENTITY_HEADERS | {ENGINE_FAILED_HEADER},
    (*LIMIT_PREFIXES, *SERVER_IDENTITY_PREFIXES),
)


def response_lines_to_client(headers: list[Header], by_name: Container[bytes], *, from_peer: bool) -> list[bytes]:
    """Return the header lines of a response for a client. Penstock's own headers pass only from a peer agent."""
    if b"connection" in by_name:
        headers = without_connection_options(headers)
    return (_FROM_PEER if from_peer else _FROM_ENGINE).lines(headers)


def without_connection_options(headers: list[Header]) -> list[Header]:
    """Return the headers that the Connection header does not declare hop-by-hop."""
    named = connection_options(headers)
    return [header for header in headers if header[0] not in named] if named else headers


def connection_options(headers: Iterable[Header]) -> frozenset[bytes]:
    """Return the names in Connection headers that may name further headers, in lower case."""
    values = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in values for token in value.split(b",")) - CONNECTION_NO_EFFECT


def decides(name: bytes) -> bool:
    """Whether this proxy reads a request header, so that it cannot be hop-by-hop (RFC 9110, section 7.6.1)."""
    return name in DECIDING_HEADERS or name.startswith(DECIDING_PREFIXES)


def agent_lines(request_id: str, traceparent: str, left_s: float, via: bytes, received_via: Sequence[bytes]) -> bytes:
    """Return the header lines that the agent writes in a request to an engine or a peer.

    Args:
        left_s: time (s) until the deadline of the request.
        via: the agent's entry in Via headers.
        received_via: the values of the client's Via headers.
    """
    left_ms = int(left_s * 1000)
    # Joined, since `%` takes four times as long.
    return b"".join(
        [
            b"x-request-id: ",
            request_id.encode(),
            b"\r\ntraceparent: ",
            traceparent.encode(),
            b"\r\nx-request-timeout-ms: ",
            str(left_ms if left_ms > 1 else 1).encode(),
            # Responses have no Via header (RFC 9110, section 7.6.3): they name the region.
            b"\r\nvia: ",
            b", ".join([*received_via, via]) if received_via else via,
            b"\r\n",
        ]
    )
