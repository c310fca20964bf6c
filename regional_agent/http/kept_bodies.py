"""The memory of large request bodies, which the tenants share."""

from __future__ import annotations

from typing import Protocol

from penstock.admission.memory_shares import MemoryShares
from regional_agent.http.limits import Limits
from regional_agent.http.messages import Request


class BodyOwner(Protocol):
    """The connection of a request whose body is kept."""

    def displace(self, request: Request) -> None:
        """Drop the body of a request or refuse the request, to make room. The memory is already released."""


class KeptBodies:
    """The memory that large request bodies take while they are kept, so that their requests can be sent again."""

    def __init__(self, limits: Limits) -> None:
        """Create a store without bodies."""
        self._limits = limits
        self._shares: MemoryShares[Request] = MemoryShares(limits.max_kept_bytes)
        self._owners: dict[Request, BodyOwner] = {}

    @property
    def bytes_kept(self) -> int:
        """Total size (bytes) of all kept bodies."""
        return self._shares.held_bytes

    def make_room(self, request: Request, size_bytes: int) -> bool:
        """Whether `size_bytes` more of a request may be kept; displaces bodies of tenants that keep more."""
        victims = self._shares.make_room(_tenant_of(request), size_bytes)
        if victims is None:
            return False
        for victim in victims:
            victim.kept_bytes, victim.body = 0, b""
            owner = self._owners.pop(victim, None)
            if owner is not None:  # an earlier victim's connection may have dropped this request
                owner.displace(victim)
        return True

    def fits(self, request: Request, chunk: bytes) -> bool:
        """Whether `chunk` may be kept without displacement, by the limits for one body and for all."""
        return len(request.body) + len(chunk) <= self._limits.kept_body_bytes and self._shares.has_room(len(chunk))

    def keep(self, request: Request, chunk: bytes, owner: BodyOwner) -> None:
        """Append `chunk` to the kept body."""
        request.body = chunk if not request.body else joined(request.body, chunk)
        request.kept_bytes += len(chunk)
        self._shares.hold(_tenant_of(request), request, len(chunk))
        self._owners[request] = owner

    def drop(self, request: Request) -> None:
        """Drop the kept part of a body that has been sent upstream; the request cannot be sent again."""
        self.release(request)
        request.body_dropped = True

    def release(self, request: Request) -> None:
        """Free the memory of a body. Called when its request ends."""
        if self._owners.pop(request, None) is not None:
            self._shares.release(_tenant_of(request), request)
        # A refused request may wait for the responses of earlier requests, without its body.
        request.kept_bytes, request.body = 0, b""


def joined(body: bytes | bytearray, chunk: bytes) -> bytearray:
    """Return `body` followed by `chunk`. A bytearray grows in place."""
    if isinstance(body, bytearray):
        body += chunk
        return body
    return bytearray(body) + chunk


def _tenant_of(request: Request) -> str:
    """Return the tenant that a request's memory counts for. Its head was accepted, if its body is large."""
    return request.accepted_head.tenant if request.accepted_head is not None else ""
