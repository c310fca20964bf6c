"""The registration API for endpoints, on the admin listener. Leases are renewed by registering again.

PUT /v1/endpoints/<name>     {"url", "models", "slots", ... as in the endpoints file, "ttl_s"}; repeat to renew
DELETE /v1/endpoints/<name>  drain the endpoint; its running requests finish
POST /v1/endpoints/<name>/preemption  {"for_s"}; drain any endpoint at once, because its node is about to be removed
GET /v1/endpoints            list all endpoints with the remaining time of their leases

Leases are stored in this agent and on its disk: an endpoint registers with every agent of its region, and a restarted
agent restores the leases that have not expired. An added or removed lease is written at once, since a successor that
starts a moment later reads the file. Registration is rejected while no token file is configured.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog

from adapters.files.plain_file import UnusableFile, read_plain_file
from adapters.files.watched_files import WatchedFiles
from penstock.health.preemption_notice import DEFAULT_NOTICE_S, MAX_NOTICE_S
from penstock.routes.route import ErrorFormat
from penstock.wire.reserved_addresses import is_reserved
from regional_agent.background_tasks import until_tick_s, wait_for_event
from regional_agent.endpoints.endpoint_fields import CHECKS, EndpointSpec
from regional_agent.endpoints.endpoint_leases import Lease, LeaseFile
from regional_agent.endpoints.endpoint_options import FILE_CHECKS, InvalidField, conflicts
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.proxy.error_formats import error_body

PATH = b"/v1/endpoints"

_PREEMPTION = "/preemption"

MIN_TTL_S, MAX_TTL_S = 5.0, 3600.0
DEFAULT_TTL_S = 30.0
"""Default time to live (s) of a lease."""

MAX_REGISTERED = 1024
MAX_BODY_BYTES = 64 * 1024
MAX_TOKEN_FILE_BYTES = 4096
MIN_TOKEN_BYTES = 16

EXPIRE_S = 0.5
"""Maximum interval (s) between two checks for expired leases."""

SAVE_S = 2.0
"""Minimum interval (s) between two writes of leases that were only renewed."""

log = structlog.get_logger()


class BadRegistrationToken(UnusableFile):
    """The token file is invalid; the message contains the file name and the remedy, never the content."""


class Reply(NamedTuple):
    """A response of this API."""

    status: int
    body: bytes
    """JSON."""


def load_tokens(path: Path) -> tuple[bytes, ...]:
    """Read the tokens of a file, one per line; more than one is valid during a token rotation.

    Raises:
        BadRegistrationToken: the file is missing, too large or empty, or one of its tokens is too short.
    """
    remedy = "make one with `openssl rand -hex 32`"
    try:
        content = read_plain_file(path, MAX_TOKEN_FILE_BYTES).content
    except OSError as error:
        raise BadRegistrationToken(f"{path}: cannot read the registration token: {error.strerror}; {remedy}") from None
    tokens = tuple(line.strip() for line in content.splitlines() if line.strip())
    if not tokens:
        raise BadRegistrationToken(f"{path}: not one token per line; {remedy}")
    if min(map(len, tokens)) < MIN_TOKEN_BYTES:
        raise BadRegistrationToken(f"{path}: a token has fewer than {MIN_TOKEN_BYTES} bytes; {remedy}")
    return tokens


class Registrations:
    """Serves the registration API and expires leases."""

    def __init__(
        self,
        endpoints: EndpointSet,
        token_file: Path | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        lease_file: LeaseFile | None = None,
        unix_clock: Callable[[], float] = time.time,
    ) -> None:
        """Read the token file and restore the stored leases.

        Args:
            token_file: file with the registration tokens; None rejects all registrations.
            clock: monotonic, in seconds.
            lease_file: stores leases across restarts; None stores nothing.
            unix_clock: Unix time, in seconds.

        Raises:
            BadRegistrationToken: the token file cannot be used.
        """
        self._endpoints = endpoints
        self.token_file = None if token_file is None else WatchedFiles((token_file,), lambda: load_tokens(token_file))
        """The registration tokens; the caller checks the file for changes."""
        self._clock = clock
        self._unix_clock = unix_clock
        self._lease_file = lease_file
        self._leases: dict[str, Lease] = {}
        self._changed = asyncio.Event()
        """Set while added, changed or removed leases are not written."""
        self._renewed = False
        """Whether leases were renewed since the last write."""
        self._saved_at = -inf
        if self.token_file is not None and lease_file is not None:
            self._leases = {
                name: lease
                for name, lease in lease_file.load(clock(), unix_clock()).items()
                if endpoints.sources.register(lease.spec) is None
            }

    def handle(self, method: bytes, path: bytes, authorization: bytes | None, body: bytes) -> Reply:
        """Handle one request to PATH or a path below PATH."""
        if self.token_file is None:
            return _refused(
                403, "registration_off", "set PENSTOCK_AGENT_REGISTRATION_TOKEN_FILE to enable registration"
            )
        if not self._is_authorized(authorization):
            return _refused(401, "unknown_token", "send `Authorization: Bearer <registration token>`")
        name = path[len(PATH) :].removeprefix(b"/").decode("latin-1")
        if not name:
            return self._list() if method == b"GET" else _refused(405, "method", f"{PATH.decode()} takes GET")
        if name.endswith(_PREEMPTION):
            if method != b"POST":
                return _refused(405, "method", f"{PATH.decode()}/<name>{_PREEMPTION} takes POST")
            return self._preempt(name.removesuffix(_PREEMPTION), body)
        if method == b"PUT":
            return self._put(name, body)
        if method == b"DELETE":
            return self._delete(name)
        return _refused(405, "method", f"{PATH.decode()}/<name> takes PUT and DELETE")

    def expire(self) -> None:
        """Unregister endpoints whose leases have expired."""
        now = self._clock()
        for name in [name for name, lease in self._leases.items() if lease.expires_at <= now]:
            log.warning("endpoint lease expired", endpoint=name, ttl_s=self._leases[name].ttl_s)
            self._drain(name)

    async def keep_expiring(self) -> None:
        """Until cancelled, expire leases, and write them to disk."""
        checked_at = self._clock()
        while True:
            tick_s = until_tick_s(asyncio.get_running_loop().time(), EXPIRE_S)
            await wait_for_event(self._changed, at_least_s=0.0, at_most_s=tick_s)
            before, checked_at = checked_at, self._clock()
            self._extend_leases(checked_at - before - 2 * EXPIRE_S)
            self.expire()
            await self._save()

    def _extend_leases(self, suspended_s: float) -> None:
        """Extend all leases by the time that this process was suspended, since it could not receive renewals."""
        if suspended_s > 0.0:
            for lease in self._leases.values():
                lease.expires_at += suspended_s

    async def _save(self) -> None:
        now = self._clock()
        is_due = self._changed.is_set() or (self._renewed and now - self._saved_at >= SAVE_S)
        self._changed.clear()
        if self._lease_file is not None and is_due:
            self._renewed = False
            self._saved_at = now
            await self._lease_file.save(self._leases, now, self._unix_clock())

    def lease_left_s(self, name: str) -> float | None:
        """Return the remaining time (s) of an endpoint's lease; None if the endpoint has no lease."""
        lease = self._leases.get(name)
        return None if lease is None else max(0.0, lease.expires_at - self._clock())

    def statuses(self) -> list[dict[str, Any]]:
        """Return the fields of every endpoint, registered or not."""
        return [endpoint_status(each, self.lease_left_s(each.name)) for each in self._endpoints.every()]

    def _is_authorized(self, authorization: bytes | None) -> bool:
        """Whether the token is valid; tokens are compared in constant time."""
        scheme, _, given = (authorization or b"").partition(b" ")
        tokens = self.token_file.content if self.token_file is not None else ()
        matches = [hmac.compare_digest(given.strip(), token) for token in tokens]
        return any(matches) and scheme.lower() == b"bearer"

    def _list(self) -> Reply:
        return Reply(200, msgspec.json.encode({"endpoints": self.statuses()}))

    def _put(self, name: str, body: bytes) -> Reply:
        new = name not in self._leases
        if new and len(self._leases) >= MAX_REGISTERED:
            return _refused(429, "too_many", f"{MAX_REGISTERED} endpoints are registered; drain some first")
        try:
            fields, ttl_s = _read(name, body)
        except _BadField as bad:
            return _refused(400, "bad_endpoint", str(bad), bad.field)
        spec, now = EndpointSpec(**fields), self._clock()
        conflict = self._endpoints.sources.register(spec)
        if conflict is not None:
            return _refused(409, "conflict", conflict, conflict.partition(":")[0])
        if new or self._leases[name].spec != spec:
            self._changed.set()
        self._renewed = True
        self._leases[name] = Lease(spec, ttl_s, now + ttl_s)
        reply = {"name": name, "ttl_s": ttl_s, "renew_within_s": ttl_s / 3}
        return Reply(201 if new else 200, msgspec.json.encode(reply))

    def _delete(self, name: str) -> Reply:
        leased = name in self._leases
        if leased:
            self._drain(name)
        if any(each.name == name and not each.view.draining for each in self._endpoints.every()):
            return _refused(409, "conflict", f"{name} comes from the endpoints file; remove it there", "name")
        if not leased:
            return _refused(404, "not_found", f"no endpoint is registered as {name[:80]!r}", "name")
        in_flight = sum(each.view.in_flight for each in self._endpoints.every() if each.name == name)
        return Reply(202, msgspec.json.encode({"name": name, "draining": True, "in_flight": in_flight}))

    def _preempt(self, name: str, body: bytes) -> Reply:
        for_s = DEFAULT_NOTICE_S
        if body:
            try:
                given = _object(body)
            except _BadField as bad:
                return _refused(400, "bad_notice", str(bad))
            for_s = given.pop("for_s", DEFAULT_NOTICE_S)
            if given:
                return _refused(400, "bad_notice", f"{next(iter(given))[:80]}: no such field; use for_s")
            number = isinstance(for_s, (int, float)) and not isinstance(for_s, bool)
            if not number or not 1 <= for_s <= MAX_NOTICE_S:
                message = f"for_s: not a number from 1 to {MAX_NOTICE_S:g}; write seconds"
                return _refused(400, "bad_notice", message, "for_s")
        endpoint = self._endpoints.preempt(name, float(for_s))
        if endpoint is None:
            return _refused(404, "not_found", f"this agent has no endpoint {name[:80]!r}", "name")
        reply = {"name": name, "draining": True, "in_flight": endpoint.view.in_flight, "for_s": for_s}
        return Reply(202, msgspec.json.encode(reply))

    def _drain(self, name: str) -> None:
        del self._leases[name]
        self._changed.set()
        self._endpoints.sources.unregister(name)


class _BadField(Exception):
    """A field is invalid."""

    def __init__(self, field: str | None, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field


def _read(name: str, body: bytes) -> tuple[dict[str, Any], float]:
    """Parse a registration: its values by field of EndpointSpec, and its time to live (s)."""
    given = _object(body)
    if given.pop("name", name) != name:
        raise _BadField("name", "differs from the name in the path; leave it out")
    given["name"] = name
    ttl_s = _ttl_s(given.pop("ttl_s", DEFAULT_TTL_S))
    values = {}
    for field, value in given.items():
        if field in FILE_CHECKS:
            raise _BadField(field, "not accepted from the network; put the endpoint into the endpoints file")
        if field not in CHECKS:
            raise _BadField(field[:80], f"no such field; use one of {', '.join(CHECKS)}, ttl_s")
        attribute, check = CHECKS[field]
        try:
            values[attribute] = check(value)
        except InvalidField as error:
            raise _BadField(field, str(error)) from None
    for field in ("url", "models", "slots"):
        if field not in given:
            raise _BadField(field, "missing; add it")
    for field, problem in conflicts(values):
        raise _BadField(field, problem)
    if is_reserved(values["address"].host):
        raise _BadField(
            "url", "a link-local, broadcast, metadata or other reserved address; use the engine's own address"
        )
    return values, ttl_s


def _object(body: bytes) -> dict[str, Any]:
    if len(body) > MAX_BODY_BYTES:
        raise _BadField(None, f"more than {MAX_BODY_BYTES} bytes; send one endpoint")
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _BadField(None, f"not JSON: {error}; send an object") from None
    if not isinstance(given, dict):
        raise _BadField(None, 'not an object; send {"url": ..., "models": [...], "slots": ...}')
    return given


def _ttl_s(value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not MIN_TTL_S <= value <= MAX_TTL_S:
        raise _BadField("ttl_s", f"not a number from {MIN_TTL_S:g} to {MAX_TTL_S:g}; write seconds")
    return float(value)


def _refused(status: int, code: str, message: str, param: str | None = None) -> Reply:
    """Create a response with OpenAI's error object; `param` is the name of the invalid field."""
    return Reply(status, error_body(ErrorFormat.OPENAI, status, code, message, param=param))
