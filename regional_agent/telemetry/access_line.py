"""One line of the access log."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.routing.reasons import Reason, Rejection


class AccessLine(msgspec.Struct, array_like=False, omit_defaults=True, gc=False):
    """One request. Contains no API key, no client address, and no content of request or response."""

    at: float
    """Unix time (s) at the end of the request."""
    request_id: str
    tenant: str
    model: str
    path: str
    kind: str
    """The label `kind` of `penstock_agent_requests_total`."""
    server: str
    """Serving region."""
    endpoint: str
    outcome: str
    status: int
    """Status of the response; 0 if the client disconnected before the response."""
    attempts: int
    received_bytes: int
    """Bytes of the request body, or from the client through the tunnel."""
    sent_bytes: int
    total_ms: float
    ttft_ms: float | None = None
    """Time (ms) to the first byte of the response body; absent if no byte was sent."""
    origin: str = ""
    """Region whose agent received the client's request."""
    country: str = ""
    """Country of the client, ISO 3166-1 alpha-2; absent if unknown."""
    subdivision: str = ""
    """Subdivision of the client, ISO 3166-2 without the country part; absent if unknown."""

    reason: str = ""
    """Why the request was refused or its response ended early, a code of docs/errors.md; otherwise absent."""
    continuations: int = 0
    """Number of continuations of the stream by another endpoint; absent if 0."""
    work_s: float = 0.0
    """Estimated work: time (s) of the request alone on the reference accelerator; absent if not estimated."""

    policy_digest: str = ""
    """SHA-256 of the policy under which the last target of the request was selected. This field and the following
    fields are absent if the request was refused before a selection."""
    plan_generation: int = 0
    """Generation of the plan under which the last target of the request was selected; absent without a plan."""
    residency_class: str = ""
    """Name of the residency class: the permitted regions, joined by `+`, or `set-` and a digest for many regions."""
    permitted: frozenset[str] | None = None
    """The permitted regions if the name of the residency class is a digest; otherwise absent."""
    rejected: tuple[Rejection, ...] = ()
    """At the origin: each region that residency forbids, with the reason and the rule; absent if there are none."""
    tried: Mapping[str, Reason] | None = None
    """Regions that did not start the request, with the reason; absent if there are none."""
    queue_ms: float | None = None
    """Time (ms) in the admission queue of this agent; absent if the request did not wait."""
    input_tokens: int | None = None
    """Tokens of the prompt, as the engine reports them; absent if no response began, and for other units of cost."""
    output_tokens: int | None = None
    """Tokens of the response, like `input_tokens`."""
    usage_estimated: bool = False
    """Whether the agent counted a part of the tokens, because the engine did not report it; absent if it did not."""
    key: str = ""
    """Identifier of the API key, such as `psk-9f86d081884c`, or of the subject of a token; absent without a key. Not
    secret."""
    cached_tokens: int = 0
    """The part of `input_tokens` that the engine read from its prefix cache, as it reports it; absent if 0."""
    input_estimated: bool = False
    """Whether `usage_estimated` is true of `input_tokens` or `cached_tokens`; absent if it is not."""
    output_estimated: bool = False
    """Whether `usage_estimated` is true of `output_tokens`; absent if it is not."""
