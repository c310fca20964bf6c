"""Request fields that locate a client, and checks of region names against the policy in force."""

from __future__ import annotations

from pydantic import Field

from adapters.error_text import suggest
from adapters.geoip import parse_address
from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.responses import Problem
from control_plane.api.text_fields import Country, Subdivision
from control_plane.request_model import RequestModel
from penstock.policy.geography import Location
from penstock.policy.policy import Policy


class ClientPlace(RequestModel):
    """Location of a client; unknown if no field is given."""

    ip: str | None = Field(None, max_length=64, description="Address of the client, to look up its location.")
    country: Country | None = None
    subdivision: Subdivision | None = None

    def location(self, geoip: GeoIpLookup) -> Location:
        """Return the location.

        Raises:
            Problem: 422, the fields contradict each other or the address is malformed.
        """
        if self.ip is None:
            if self.subdivision is not None and self.country is None:
                raise Problem(422, "subdivision: requires country")
            return Location(self.country, self.subdivision)
        if self.country is not None or self.subdivision is not None:
            raise Problem(422, "ip: cannot be combined with country and subdivision")
        address = parse_address(self.ip)
        if address is None:
            raise Problem(422, f"ip: {self.ip!r} is not an IP address")
        return geoip.find(address)[0]


def require_policy(policy: Policy | None) -> Policy:
    """Return the policy in force.

    Raises:
        Problem: 503, no policy is in force yet.
    """
    if policy is None:
        raise Problem(503, "no policy is in force yet", {"retry-after": "2"})
    return policy


def require_region(policy: Policy, name: str, field: str) -> str:
    """Return `name` if the policy has a region of that name.

    Raises:
        Problem: 422, the policy has no region of that name.
    """
    if name not in policy.regions:
        remedy = suggest(name, policy.regions, "GET /v1/status lists them")
        raise Problem(422, f"{field}: there is no region {name!r}; {remedy}")
    return name
