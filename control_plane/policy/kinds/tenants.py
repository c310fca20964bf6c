"""Kinds for tenants and the data classes of their requests."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import REMEDY, KeyDigest, Label, PolicyDocument, StrictModel, Text, UniqueList

ORIGIN = r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[1-9][0-9]{0,4}))?"
"""An origin as browsers serialise it (https://html.spec.whatwg.org/#ascii-serialisation-of-an-origin)."""

DEFAULT_PORTS = {("http", "80"), ("https", "443")}


class DataClassDocument(PolicyDocument):
    """A kind of data that residency rules match; declared so that a misspelled name is an error."""

    kind: Literal["DataClass"]
    name: Label
    """Unique name, such as `eu-personal`."""
    description: Text = Field("", max_length=500)
    """Free text: the data that belongs to the class."""


class QuotaSpec(StrictModel):
    """Limits of a tenant in each region in which its clients enter.

    Each agent of a region enforces an equal part: where clients are spread over agents unevenly, some requests are
    refused before the whole quota is used.
    """

    requests_per_s: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Requests that may start per second; null: no limit."""
    burst_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that may start at once after a pause. null: the number that `requests_per_s` allows in one
    second, at least 1."""
    concurrent: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that may run at once, from admission to the end of the response; null: no limit."""

    @model_validator(mode="after")
    def _limits_something(self) -> Self:
        if self.requests_per_s is None and self.concurrent is None:
            raise PydanticCustomError(
                REMEDY, "limits nothing", {"remedy": "write requests_per_s or concurrent, or remove the quota"}
            )
        return self


class TenantDocument(PolicyDocument):
    """An owner of requests."""

    kind: Literal["Tenant"]
    name: Label
    """Unique name, used in metrics and audit entries."""
    data_class: Label
    """Name of the data class of all its requests."""
    priority: int = Field(0, ge=-1000, le=1000)
    """Priority of the tenant's requests: requests with a higher priority leave a queue first."""
    quota: QuotaSpec | None = None
    """Limits of the tenant; requests beyond them are refused with 429 `quota_exceeded`. null: no limit."""
    key_digests: UniqueList[KeyDigest] = Field(default_factory=list)
    """SHA-256 of each of its API keys in lower-case hexadecimal; never the keys themselves."""


def _origin(text: str) -> str:
    """Accepts `*`, and an origin as browsers send it: lower case, no path, no default port."""
    found = re.fullmatch(ORIGIN, text)
    if text != "*" and found is None:
        remedy = "write the origin as browsers send it, such as https://app.example or http://localhost:3000, or *"
        raise PydanticCustomError(REMEDY, "is not an origin", {"remedy": remedy})
    if found is not None and (found["scheme"], found["port"]) in DEFAULT_PORTS:
        remedy = f"remove :{found['port']}, which browsers do not send"
        raise PydanticCustomError(REMEDY, "has the default port of its scheme", {"remedy": remedy})
    return text


class BrowserAccessDocument(PolicyDocument):
    """Web pages that may use the fleet from a browser (CORS). At most one per bundle; without it, none may.

    The pages need the API key of a tenant as all clients do. A key that a page contains is known to all its visitors:
    give such keys a tenant of their own, with a quota.
    """

    kind: Literal["BrowserAccess"]
    cors_origins: Annotated[UniqueList[Annotated[str, AfterValidator(_origin)]], Field(max_length=100)] = Field(
        default_factory=list
    )
    """Origins of the pages, such as `https://app.example`; `*` for all. Agents answer their preflight requests, and
    permit them to read responses, refusals included."""


class AnonymousAccessDocument(PolicyDocument):
    """Handling of requests without a key. At most one per bundle."""

    kind: Literal["AnonymousAccess"]
    tenant: Label | None = None
    """Tenant to which such requests belong; null: refuse them."""
