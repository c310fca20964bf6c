"""Kinds for routes: the requests that the fleet accepts, as presets of known APIs and as custom routes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from control_plane.policy.kinds.base import (
    Label,
    ModelName,
    NonEmptyList,
    PolicyDocument,
    StrictModel,
    Text,
    UniqueList,
)

Seconds = Annotated[float, Field(gt=0, le=86_400)]
Method = Literal["DELETE", "GET", "PATCH", "POST", "PUT"]
Pointer = Annotated[str, Field(min_length=1, max_length=256)]


def _post() -> list[Method]:
    return ["POST"]


class TimeoutsSpec(StrictModel):
    """Time limits (s) of requests. null: the next more general limit applies (model, route, agent)."""

    connect_s: Seconds | None = None
    """Time (s) for opening a connection to an endpoint."""
    first_byte_s: Seconds | None = None
    """Time (s) from sending a request to the first byte of a response that is sent as a whole."""
    stream_first_byte_s: Seconds | None = None
    """Time (s) from sending a request to the first byte of a response that is streamed."""
    idle_s: Seconds | None = None
    """Time (s) between two parts of a response."""
    total_s: Seconds | None = None
    """Time (s) from the receipt of a request to the end of its response."""


class ModelLocationSpec(StrictModel):
    """One place where a request names its model."""

    source: Literal["path", "json", "form", "header", "query", "fixed"]
    """Part of the request: a parameter of the path, a JSON pointer into the body, a field of a multipart form, a
    header, a query parameter; or `fixed`, if all requests are for one model."""
    name: str = Field(min_length=1, max_length=256)
    """Name of the parameter, field or header; the JSON pointer, such as `/model`; or the fixed model."""


class CostFieldsSpec(StrictModel):
    """JSON pointers to the quantities that determine the cost of a request; of several pointers in a field, the first
    that exists in the request counts. The cost unit of the model determines which quantities are used."""

    generates: bool = True
    """Whether tokens are generated; embeddings and scores generate none."""
    prompt: UniqueList[Pointer] = Field(default_factory=list)
    """The prompt: a text, messages, or content parts."""
    max_tokens: UniqueList[Pointer] = Field(default_factory=list)
    """Limit on generated tokens."""
    count: UniqueList[Pointer] = Field(default_factory=list)
    """Number of results requested at once."""
    batches: UniqueList[Pointer] = Field(default_factory=list)
    """Number of batches, each of `count` results."""
    size: UniqueList[Pointer] = Field(default_factory=list)
    """Size of an image as one text, such as `1024x768`."""
    width: UniqueList[Pointer] = Field(default_factory=list)
    """Width (pixels) of an image."""
    height: UniqueList[Pointer] = Field(default_factory=list)
    """Height (pixels) of an image."""
    steps: UniqueList[Pointer] = Field(default_factory=list)
    """Denoising steps."""
    speech: UniqueList[Pointer] = Field(default_factory=list)
    """Text to be spoken."""
    seconds: UniqueList[Pointer] = Field(default_factory=list)
    """Duration (s) of audio."""
    tensors: UniqueList[Pointer] = Field(default_factory=list)
    """Array of tensors, each with a `shape` (Open Inference Protocol)."""


class UsageFieldsSpec(StrictModel):
    """JSON pointers to the usage that a response states."""

    objects: UniqueList[Annotated[str, Field(max_length=256)]] = Field(default_factory=lambda: ["/usage"])
    """The objects with the numbers, in the response or in the data of an event; `""` is the response itself. Of several
    statements of one number in a stream, the last counts."""
    prompt_tokens: UniqueList[Pointer] = Field(default_factory=lambda: ["/prompt_tokens"])
    """Numbers of prompt tokens below an object; their sum counts, cached tokens included."""
    answer_tokens: UniqueList[Pointer] = Field(default_factory=lambda: ["/completion_tokens"])
    """Numbers of generated tokens below an object; their sum counts."""
    cached_tokens: UniqueList[Pointer] = Field(default_factory=lambda: ["/prompt_tokens_details/cached_tokens"])
    """Numbers of prompt tokens below an object that were read from a cache; their sum counts."""
    request: Annotated[str, Field(max_length=256)] = ""
    """The flag by which a request asks for the usage of a stream; empty if streams need none. The agent sets the flag
    where the client does not, and hides the event that only states the usage."""


class RouteDocument(PolicyDocument):
    """A kind of request that the fleet accepts, in addition to the routes of the presets.

    No two routes may match the same request, including routes of presets. A route may replace a route that a preset
    does not offer.
    """

    kind: Literal["Route"]
    name: Label
    """Unique name, also among the routes of the presets."""
    description: Text = Field("", max_length=500)
    """Free text: the purpose of the route."""
    path: str = Field(min_length=1, max_length=512)
    """Path template, such as `/v2/models/{model}/infer`. A segment `{name}` is a parameter: it matches one segment."""
    methods: NonEmptyList[Method] = Field(default_factory=_post)
    """HTTP methods. GET includes HEAD."""
    model: UniqueList[ModelLocationSpec] = Field(default_factory=list)
    """Places where requests name the model; all places that a request has must name the same model. Required, unless
    the route is not offered or is for an existing object (`object_id`)."""
    body: Literal["none", "json", "upload", "opaque"] = "json"
    """Handling of the body by agents: `none`; `json`, which is parsed; `upload` (a multipart form, a media file, or
    JSON by its Content-Type), which is forwarded as it arrives; or `opaque`, which is forwarded as it arrives and never
    parsed."""
    stream: Literal["none", "sse", "ndjson", "chunked", "websocket"] = "none"
    """Format of responses that arrive in parts: server-sent events, JSON lines, any other bytes, or a WebSocket."""
    stream_field: str = Field("", max_length=256)
    """JSON pointer to the flag by which a client requests a stream; empty if every response is streamed, or none is."""
    streams_by_default: bool = False
    """Whether a response is streamed if the flag is absent."""
    repeatable: bool = True
    """Whether a request may be sent again if an endpoint may have begun to process it but has sent no response."""
    timeouts: TimeoutsSpec = TimeoutsSpec()
    """Time limits of the route's requests."""
    cost: CostFieldsSpec = CostFieldsSpec()
    """Locations of the quantities that determine the cost of a request."""
    usage: UsageFieldsSpec = UsageFieldsSpec()
    """Location of the usage in responses."""
    errors: Literal["openai", "anthropic", "kserve", "problem"] = "openai"
    """Format of error responses of the agent: OpenAI's, Anthropic's, KServe's, or problem details (RFC 9457)."""
    api_key_header: Literal["", "api-key", "ocp-apim-subscription-key", "x-api-key", "x-goog-api-key"] = ""
    """Header with the API key, in addition to `Authorization: Bearer`; empty for none."""
    session: UniqueList[Pointer] = Field(default_factory=list)
    """JSON pointers to the name of the conversation; the first that exists in the request counts."""
    message_model: UniqueList[Pointer] = Field(default_factory=list)
    """For a WebSocket: JSON pointers into the messages of the client that may name a model, such as `/session/model`. A
    message that names a model which the policy refuses to the client is not forwarded. Agents then read all messages,
    so that compression is not negotiated."""
    object_id: str = Field("", max_length=256)
    """For a route that creates an object: JSON pointer to the object's identifier in the response. In an event stream,
    the pointer applies to the data of an event, or to the member `response` of the data. For a route of an existing
    object: the path parameter with the identifier, or `?name` for a query parameter. Such a request is sent to the
    endpoint that created the object for the same tenant, or refused. Such a request names no model, unless it may lack
    the query parameter."""
    client_object: str = Field("", max_length=256)
    """Location of an identifier that the client chose: a JSON pointer into the body, or `?name` for a query parameter.
    The first endpoint that accepts such a request is preferred for all other requests with the same identifier."""
    previous_object: str = Field("", max_length=256)
    """JSON pointer to the identifier of an earlier object in a request that creates one: the endpoint that has the
    earlier object is preferred."""
    occupies_slot: bool = True
    """Whether a request occupies a slot of its endpoint. false is for a WebSocket that only carries notifications."""
    offered: bool = True
    """Whether the fleet serves such requests. false: they are refused with status 501."""


class RoutePresetsDocument(PolicyDocument):
    """The APIs that the fleet serves. Without this document, the preset `openai` applies. At most one per bundle."""

    kind: Literal["RoutePresets"]
    presets: UniqueList[str] = Field(default_factory=lambda: ["openai"])
    """Names of presets; `penstock policy presets` lists them."""
    models: dict[str, ModelName] = Field(default_factory=dict)
    """Fixed model of presets whose requests name no model, by preset. Without a fixed model, the header `x-model` or
    the query parameter `model` names the model."""
