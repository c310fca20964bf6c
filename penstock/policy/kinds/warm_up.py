"""Fields of the synthetic requests that an endpoint answers before it counts as ready."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.policy.fields import Conflict, PolicyStruct, bounds, length, pattern

MODEL_PLACE = "{model}"
"""What stands for the engine's name of the model in a body."""


class WarmUp(PolicyStruct, frozen=True):
    """Synthetic requests that every agent of a region sends to an endpoint that has loaded the model, before those of
    clients: they compile graphs and fill caches. Endpoints that run when an agent starts, or
    that serve when a policy adds the warm-up, count as warm."""

    requests: Annotated[int, bounds(ge=1, le=1_000)] = 8
    """Number of requests that must be answered with 2xx."""
    concurrent: Annotated[int, bounds(ge=1, le=256)] = 1
    """Number of requests at the same time."""
    path: Annotated[
        str, pattern(r"^/[A-Za-z0-9._~!$&'()*+,;=:@%/-]{0,255}$", "write a path such as /v1/completions")
    ] = "/v1/completions"
    """Path of the requests; they are POSTs."""
    body: Annotated[str, length(2, 16_384)] = '{"model": "{model}", "prompt": "Write one sentence.", "max_tokens": 16}'
    """Body of the requests: JSON, in which `{model}` stands for the engine's name of the model."""
    timeout_s: Annotated[float, bounds(ge=1, le=3600)] = 300.0
    """Time (s) after which the endpoint counts as ready in any case, so that a wrong body takes no endpoint away."""

    def body_for(self, name: str) -> bytes:
        """The body of a request for the model with this name in the engine."""
        quoted = msgspec.json.encode(name).decode()[1:-1]
        return self.body.replace(MODEL_PLACE, quoted).encode()

    def conflict(self) -> Conflict | None:
        try:
            msgspec.json.decode(self.body_for("m"))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return Conflict(f"body is no JSON: {error}", "correct body")
        return None
