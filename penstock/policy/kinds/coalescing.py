"""Kind of policy document: which identical requests share one engine run."""

from __future__ import annotations

from typing import Annotated

from penstock.policy.fields import NonEmpty, PolicyStruct, length


class Coalescing(PolicyStruct, frozen=True):
    """Identical deterministic requests in flight share one engine run. At most one per bundle; without it, none do.

    Requests share a run if tenant, API key, location, path and body are equal, nothing is generated (embeddings,
    scores), the temperature is 0 or a seed is given, and the response is not streamed.
    """

    routes: NonEmpty[tuple[Annotated[str, length(1, 128)], ...]] = ()
    """Names of routes, with `*` for any characters."""
