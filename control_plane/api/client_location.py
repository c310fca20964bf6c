"""What a request to the API says of a client: its address, or the place itself."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from adapters.geoip import parse_address
from adapters.geoip_lookup import GeoIpLookup
from control_plane.api.problems import Problem
from control_plane.policy.suggestion import suggestion
from penstock.policy.countries import country_flaw
from penstock.policy.geography import Location
from penstock.policy.policy import Policy


def _country(code: str) -> str:
    if (flaw := country_flaw(code)) is not None:
        raise PydanticCustomError("country", "{flaw}", {"flaw": flaw})
    return code


Country = Annotated[
    str,
    AfterValidator(_country),
    Field(
        max_length=64,
        description="ISO 3166-1 alpha-2; left out or null where nobody knows.",
        examples=["DE"],
        json_schema_extra={"pattern": "^[A-Z]{2}$"},
    ),
]
"""Of a client."""

Subdivision = Annotated[str, Field(pattern="^[A-Z0-9]{1,3}$", description="ISO 3166-2 without the country part.")]


class ClientPlace(BaseModel):
    """Where a client is; nothing of it means that nobody knows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ip: str | None = Field(None, max_length=64, description="Its address, to look up.")
    country: Country | None = None
    subdivision: Subdivision | None = None

    def location(self, geoip: GeoIpLookup) -> Location:
        """The place.

        Raises:
            Problem: 422, it is said twice or not well-formed.
        """
        if self.ip is None:
            if self.subdivision is not None and self.country is None:
                raise Problem(422, "subdivision: belongs to a country; give that too")
            return Location(self.country, self.subdivision)
        if self.country is not None or self.subdivision is not None:
            raise Problem(422, "ip: give the address or the place, not both")
        address = parse_address(self.ip)
        if address is None:
            raise Problem(422, f"ip: {self.ip!r} is no IP address")
        return geoip.find(address)[0]


def policy_in_force(policy: Policy | None) -> Policy:
    """The policy.

    Raises:
        Problem: 503, there is none yet.
    """
    if policy is None:
        raise Problem(503, "no policy is in force yet", {"retry-after": "2"})
    return policy


def region_of(policy: Policy, name: str, field: str) -> str:
    """`name`, when it is a region's.

    Raises:
        Problem: 422, there is no such region.
    """
    if name not in policy.regions:
        remedy = suggestion(name, policy.regions, "GET /v1/status lists them")
        raise Problem(422, f"{field}: there is no region {name!r}; {remedy}")
    return name
