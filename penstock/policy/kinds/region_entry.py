"""Where clients enter a region, and the types of names and addresses in the DNS."""

from __future__ import annotations

from typing import Annotated

from penstock.policy.fields import PORT, Conflict, NonEmpty, PolicyStruct, bounds, pattern

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9])?"

DnsNameText = Annotated[
    str,
    pattern(
        rf"^(?=.{{1,253}}$){_LABEL}(\.{_LABEL})+$",
        "write a complete name in lower case without the dot at its end, such as eu.api.example.com",
    ),
]
"""A name in the DNS (RFC 1035), in lower case, without the root's dot."""

IpText = Annotated[
    str,
    pattern(r"^[0-9a-f:.]{2,45}$", "write an IPv4 or IPv6 address, in lower case, such as 192.0.2.10 or 2001:db8::10"),
]
"""An IP address; the compiler parses it."""

EntryUrl = Annotated[
    str,
    pattern(
        r"^https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:" + PORT + ")?$",
        "write scheme, host and port alone, such as https://eu-de.api.example.com",
    ),
]

DnsTtlS = Annotated[int, bounds(ge=1, le=86_400)]


class RegionEntry(PolicyStruct, frozen=True):
    """Where clients enter a region. DNS names resolve to `addresses` or `cname`; refusals name `url`."""

    url: EntryUrl = ""
    """URL at which clients reach this region alone, such as `https://eu-de.api.example.com`. A client that entered at a
    region that residency forbids receives the URLs of permitted regions with status 421."""
    addresses: NonEmpty[tuple[IpText, ...]] = ()
    """IPv4 and IPv6 addresses of the region's agents or of the balancer in front of them."""
    cname: DnsNameText = ""
    """Name of a balancer without fixed addresses, in place of `addresses`; it must resolve to this region alone."""

    def conflict(self) -> Conflict | None:
        if self.addresses and self.cname:
            return Conflict("has `addresses` and `cname`", "keep one of them: a name with a CNAME has no other records")
        if self.url or self.addresses or self.cname:
            return None
        return Conflict("states no entry", "write `url`, `addresses` or `cname`")
