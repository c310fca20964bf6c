"""Kind of policy document: which identical requests share one engine run."""

from __future__ import annotations

from typing import Annotated

from penstock.policy.fields import NonEmpty, PolicyStruct, length


class Coalescing(PolicyStruct, frozen=True):
    """Identical deterministic requests in flight share one engine run. At most one per bundle; without it, none do.

    Requests share a run if tenant, API key, location, path and body are equal, nothing is generated (embeddings,
    scores), the temperature is 0 or a seed is given. Streamed responses are shared, too.
    """

    routes: NonEmpty[tuple[Annotated[str, length(1, 128)], ...]] = ()
    """Names of routes, with `*` for any characters."""
    shared_by: NonEmpty[tuple[Annotated[str, length(1, 128)], ...]] = ()
    """Names of tenants, with `*` for any characters, that share runs with each other. Each can find out whether another
    one sends the same request at the same time, and the tenant of the first request pays for the run."""
