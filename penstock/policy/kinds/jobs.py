"""Kind of policy document: the stores of jobs."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Annotated

from msgspec import UNSET, UnsetType

from penstock.policy.fields import (
    DERIVED,
    Conflict,
    Label,
    NonEmpty,
    PlaceRef,
    PolicyStruct,
    RegionRef,
    StoreUrl,
    bounds,
    length,
)


class JobStore(PolicyStruct, frozen=True):
    """Where agents keep files, batches and asynchronous requests. In a region without a store, the agents do not offer
    these APIs.

    A tenant's files and batches are kept in the store of the region that its client has reached, and only if the
    tenant's requests may run in every region that the store covers, and in its `successors`: agents of all these
    regions can read the store.
    """

    name: Label
    """Unique name."""
    url: StoreUrl
    """Folder or bucket: `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://account/container/prefix`. All agents of the covered regions must reach it."""
    regions: NonEmpty[tuple[RegionRef, ...]] = ()
    """Regions whose jobs the store holds."""
    jurisdictions: NonEmpty[tuple[PlaceRef, ...]] = ()
    """Countries and blocs whose regions' jobs the store holds: those of its own location. A region may have one store
    only."""
    successors: NonEmpty[tuple[RegionRef, ...]] = ()
    """Further regions whose agents finish the jobs of a covered region that is lost, as those of the other covered
    regions do. They must reach the store."""
    max_file_bytes: Annotated[int, bounds(ge=1_000, le=100_000_000_000)] = 1_000_000_000
    """Maximum size (bytes) of a file; the setting `max_body_bytes` of the agent limits uploads, too."""
    max_requests: Annotated[int, bounds(ge=1, le=100_000_000)] = 1_000_000
    """Maximum number of requests of a batch."""
    max_tenant_bytes: Annotated[int, bounds(ge=1_000, le=1_000_000_000_000_000)] = 100_000_000_000
    """Bytes that the files of one tenant may take, with uploads in parts; further uploads are refused. The bodies of
    its unfinished asynchronous requests may take as many; further requests are refused."""
    max_open_batches: Annotated[int, bounds(ge=1, le=10_000)] = 100
    """Batches of one tenant that may be unfinished; further ones are refused."""
    max_open_requests: Annotated[int, bounds(ge=1, le=1_000_000)] = 10_000
    """Asynchronous requests and batches of one tenant that may be unfinished; further requests are refused."""
    concurrency: Annotated[int, bounds(ge=1, le=10_000)] = 64
    """Requests of jobs that one agent runs or queues at a time."""
    max_use_percent: Annotated[float, bounds(ge=1, le=100)] = 75.0
    """Part (%) of a model's slots in a region up to which requests of jobs start; the others stay free for requests
    with a priority. A lower one of the tenant's tier applies."""
    retention_s: Annotated[float, bounds(ge=3_600, le=31_536_000)] = 2_592_000.0
    """Time (s) after its upload for which a file is kept, and after its end for which an asynchronous request or a
    batch is kept, with its results. Then agents delete them, within two hours. A file that an unfinished batch
    reads is kept for a further such time."""
    signed_urls_s: Annotated[int, bounds(ge=60, le=604_800)] | UnsetType = UNSET
    """Time (s) for which URLs of the bucket are valid with which a client reads its files and results, and writes parts
    of uploads, without agents. Such a URL is all that a client needs. Absent: there are none. A store in a folder has
    none."""
    webhook_networks: NonEmpty[tuple[Annotated[str, length(2, 49)], ...]] = ()
    """Networks (CIDR) besides public addresses to which webhooks may be sent, also with http, such as 10.20.0.0/16.
    Link-local, multicast and metadata addresses are never used."""
    covers: Annotated[frozenset[str] | UnsetType, DERIVED] = UNSET
    """All regions whose jobs the store holds."""

    @property
    def readers(self) -> frozenset[str]:
        """All regions whose agents read the store."""
        return (self.covers or frozenset()).union(self.successors)

    def conflict(self) -> Conflict | None:
        for network in self.webhook_networks:
            try:
                ip_network(network)
            except ValueError as error:
                return Conflict(
                    f"has {network!r} in `webhook_networks`: {error}", "write networks such as 10.20.0.0/16"
                )
        if self.signed_urls_s is not UNSET and self.url.startswith("file:"):
            return Conflict("has `signed_urls_s`, and a folder signs no URLs", "remove it, or use a bucket")
        if self.regions or self.jurisdictions:
            return None
        return Conflict("holds the jobs of no region", "write `regions`, `jurisdictions`, or both")
