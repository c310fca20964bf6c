"""Kinds of policy documents: prices of requests, and the stores of the ledger."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import (
    DERIVED,
    AdapterPattern,
    Conflict,
    Day,
    Label,
    NonEmpty,
    PlaceRef,
    PolicyStruct,
    RegionRef,
    StoreUrl,
    bounds,
    pattern,
)

Amount = Annotated[float, bounds(ge=0, le=1e9)]


class ModelPrice(PolicyStruct, frozen=True):
    """What tenants pay for the requests of some models."""

    model: AdapterPattern
    """Names of models and adapters, with `*` for any characters; the first price of the list that matches applies."""
    per_million_input_tokens: Amount = 0.0
    """Price of 10^6 tokens of prompts that the engine did not read from its cache."""
    per_million_cached_tokens: Amount | None = None
    """Price of 10^6 tokens of prompts that the engine read from its cache; null: as `per_million_input_tokens`."""
    per_million_output_tokens: Amount = 0.0
    """Price of 10^6 tokens of answers."""
    per_request: Amount = 0.0
    """Price of a request whose response began with a status below 400."""
    per_unit: Amount = 0.0
    """Price of one unit of `cost.unit` of a model whose unit is not the token: a megapixel step, a second of speech, a
    tensor element, a request."""


class Prices(PolicyStruct, frozen=True):
    """A price list. Of several, the one with the latest `valid_from` that has passed is in force. Models that it does
    not name cost nothing."""

    name: Label
    """Unique name, such as `2027`."""
    valid_from: Day
    """First day (UTC) on which the list is in force, such as 2026-12-01. Requests have the prices of the day on which
    they end."""
    currency: Annotated[str, pattern(r"^[A-Z]{3}$", "write an ISO 4217 code, such as EUR")]
    """Currency of the amounts, ISO 4217; the same in all lists, and that of the regions' prices."""
    models: NonEmpty[tuple[ModelPrice, ...]]
    """Prices by model; the first that matches the name of the model or adapter applies."""
    batch_percent: Annotated[float, bounds(ge=0, le=100)] = 100.0
    """Part (%) of these prices that requests below all priorities cost: those of batches, asynchronous requests, and
    tenants with a batch tier. 50 is half price."""


class UsageStore(PolicyStruct, frozen=True):
    """Where agents put the segments of the ledger. Without a store, the ledger is off and agents keep no records.

    The records of a region go only to the store that covers it. While other regions have a store, the agents of a
    region that no store covers keep their records on disk, up to `ledger_spool_bytes`.
    """

    name: Label
    """Unique name."""
    url: StoreUrl
    """Folder or bucket: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://account/container/prefix`."""
    regions: NonEmpty[tuple[RegionRef, ...]] = ()
    """Regions whose records the store holds."""
    jurisdictions: NonEmpty[tuple[PlaceRef, ...]] = ()
    """Countries and blocs whose regions' records the store holds: those of its own location, if records must not
    leave it. A region may have one store only."""
    retention_days: Annotated[int, bounds(ge=1, le=36_500)] | None = None
    """Days for which segments are kept, by the day (UTC) on which the requests ended; null: forever."""
    covers: Annotated[frozenset[str] | UnsetType, DERIVED] = UNSET
    """All regions whose records the store holds."""

    def conflict(self) -> Conflict | None:
        if self.regions or self.jurisdictions:
            return None
        return Conflict("holds the records of no region", "write `regions`, `jurisdictions`, or both")
