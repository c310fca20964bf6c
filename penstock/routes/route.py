"""A route: a kind of request that the fleet accepts, as policy describes it.

Fields are located by JSON pointers (RFC 6901). A tuple of pointers lists alternatives: the first that the body contains
is used. A time limit of None takes the agent's limit.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal, get_args

import msgspec

from penstock.policy.fields import DERIVED, Label, ModelName, NonEmpty, Pointer, PolicyStruct, bounds, length

ApiKeyHeader = Literal["", "api-key", "ocp-apim-subscription-key", "x-api-key", "x-goog-api-key"]
API_KEY_HEADERS = frozenset(get_args(ApiKeyHeader)) - {""}
"""Headers with an API key, in addition to Authorization. An agent never forwards a client's key to engines or peers."""

Method = Literal["DELETE", "GET", "PATCH", "POST", "PUT"]
Pointers = tuple[Pointer, ...]
Place = Annotated[str, length(0, 256)]
"""A JSON pointer, or another location in a request; empty for none."""
Seconds = Annotated[float, bounds(gt=0, le=86_400)]


class ModelSource(StrEnum):
    """Part of a request that names the model."""

    PATH = "path"
    JSON = "json"
    FORM = "form"
    HEADER = "header"
    QUERY = "query"
    FIXED = "fixed"


class ModelLocation(PolicyStruct, frozen=True, omit_defaults=True):
    """One place where a request names its model."""

    source: ModelSource
    """Part of the request: a parameter of the path, a JSON pointer into the body, a field of a multipart form, a
    header, a query parameter; or `fixed`, if all requests are for one model."""
    name: Annotated[str, length(1, 256)]
    """Name of the parameter, field or header; the JSON pointer, such as `/model`; or the fixed model."""


class BodyKind(StrEnum):
    """How an agent handles the body of a request."""

    NONE = "none"
    JSON = "json"
    UPLOAD = "upload"
    OPAQUE = "opaque"


class StreamKind(StrEnum):
    """Format of a response that arrives in parts."""

    NONE = "none"
    SSE = "sse"
    NDJSON = "ndjson"
    CHUNKED = "chunked"
    WEBSOCKET = "websocket"


class ErrorFormat(StrEnum):
    """Format of the error responses that the agent itself creates."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    KSERVE = "kserve"
    PROBLEM = "problem"


class Timeouts(PolicyStruct, frozen=True, omit_defaults=True):
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


class CostFields(PolicyStruct, frozen=True, omit_defaults=True):
    """JSON pointers to the quantities that determine the cost of a request; of several pointers in a field, the first
    that exists in the request counts. The cost unit of the model determines which quantities are used."""

    generates: bool = True
    """Whether tokens are generated; embeddings and scores generate none."""
    uses_tokens: bool = True
    """Whether a request to a model whose cost unit is the token uses tokens. false: it counts as none, whatever its
    response states; for requests that only count tokens, or read or cancel what exists."""
    prompt: Pointers = ()
    """The prompt: a text, messages, or content parts."""
    max_tokens: Pointers = ()
    """Limit on generated tokens."""
    count: Pointers = ()
    """Number of results requested at once."""
    batches: Pointers = ()
    """Number of batches, each of `count` results."""
    size: Pointers = ()
    """Size of an image as one text, such as `1024x768`."""
    width: Pointers = ()
    """Width (pixels) of an image."""
    height: Pointers = ()
    """Height (pixels) of an image."""
    steps: Pointers = ()
    """Denoising steps."""
    speech: Pointers = ()
    """Text to be spoken."""
    seconds: Pointers = ()
    """Duration (s) of audio."""
    tensors: Pointers = ()
    """Array of tensors, each with a `shape` (Open Inference Protocol)."""

    @property
    def is_text(self) -> bool:
        """Whether the requests cost tokens: they limit generated tokens, or have a prompt and generate nothing."""
        return self.max_tokens != () or (self.prompt != () and not self.generates)


TOOLS: Final = "/tools"
"""JSON pointer to the tools that the model may call, in all APIs with tools. Engines may hold back a call until it is
complete, so that the silence of such a request alone does not make its endpoint suspect. No field of a route: agents of
the previous release refuse routes with a field that they do not know."""

NO_TOKENS: Final = CostFields(generates=False, uses_tokens=False)
"""The cost of requests that only read or cancel what exists."""


class UsageFields(PolicyStruct, frozen=True, omit_defaults=True):
    """JSON pointers to the usage that a response states."""

    objects: tuple[Place, ...] = ("/usage",)
    """The objects with the numbers, in the response or in the data of an event; `""` is the response itself. Of several
    statements of one number in a stream, the last counts."""
    prompt_tokens: Pointers = ("/prompt_tokens",)
    """Numbers of prompt tokens below an object; their sum counts, cached tokens included."""
    answer_tokens: Pointers = ("/completion_tokens",)
    """Numbers of generated tokens below an object; their sum counts."""
    cached_tokens: Pointers = ("/prompt_tokens_details/cached_tokens",)
    """Numbers of prompt tokens below an object that were read from a cache; their sum counts."""
    request: Place = ""
    """The flag by which a request asks for the usage of a stream; empty if streams need none. The agent sets the flag
    where the client does not, and hides the event that only states the usage."""


class Route(PolicyStruct, frozen=True, omit_defaults=True):
    """A kind of request that the fleet accepts, in addition to the routes of the presets.

    No two routes may match the same request, including routes of presets. A route may replace a route that a preset
    does not offer.
    """

    name: Label
    """Unique name, also among the routes of the presets."""
    path: Annotated[str, length(1, 512)]
    """Path template, such as `/v2/models/{model}/infer`. A segment `{name}` is a parameter: it matches one segment."""
    methods: NonEmpty[frozenset[Method]] = frozenset({"POST"})
    """HTTP methods. GET includes HEAD."""
    model: tuple[ModelLocation, ...] = ()
    """Places where requests name the model; all places that a request has must name the same model. Required, unless
    the route is not offered or is for an existing object (`object_id`)."""
    body: BodyKind = BodyKind.JSON
    """Handling of the body by agents: `none`; `json`, which is parsed; `upload` (a multipart form, a media file, or
    JSON by its Content-Type), which is forwarded as it arrives; or `opaque`, which is forwarded as it arrives and never
    parsed."""
    stream: StreamKind = StreamKind.NONE
    """Format of responses that arrive in parts: server-sent events, JSON lines, any other bytes, or a WebSocket."""
    stream_field: Place = ""
    """JSON pointer to the flag by which a client requests a stream; empty if every response is streamed, or none is."""
    streams_by_default: bool = False
    """Whether a response is streamed if the flag is absent."""
    repeatable: bool = True
    """Whether a request may be sent again if an endpoint may have begun to process it but has sent no response."""
    timeouts: Timeouts = Timeouts()
    """Time limits of the route's requests."""
    cost: CostFields = CostFields()
    """Locations of the quantities that determine the cost of a request."""
    usage: UsageFields = UsageFields()
    """Location of the usage in responses."""
    errors: ErrorFormat = ErrorFormat.OPENAI
    """Format of error responses of the agent: OpenAI's, Anthropic's, KServe's, or problem details (RFC 9457)."""
    api_key_header: ApiKeyHeader = ""
    """Header with the API key, in addition to `Authorization: Bearer`; empty for none."""
    session: Pointers = ()
    """JSON pointers to the name of the conversation; the first that exists in the request counts."""
    message_model: Pointers = ()
    """For a WebSocket: JSON pointers into the messages of the client that may name a model, such as `/session/model`. A
    message that names a model which the policy refuses to the client is not forwarded. Agents then read all messages,
    so that compression is not negotiated."""
    object_id: Place = ""
    """For a route that creates an object: JSON pointer to the object's identifier in the response. In an event stream,
    the pointer applies to the data of an event, or to the member `response` of the data. For a route of an existing
    object: the path parameter with the identifier, or `?name` for a query parameter. Such a request is sent to the
    endpoint that created the object for the same tenant, or refused. Such a request names no model, unless it may lack
    the query parameter."""
    client_object: Place = ""
    """Location of an identifier that the client chose: a JSON pointer into the body, or `?name` for a query parameter.
    The first endpoint that accepts such a request is preferred for all other requests with the same identifier."""
    previous_object: Place = ""
    """JSON pointer to the identifier of an earlier object in a request that creates one. Only the endpoint that created
    the earlier object for the same tenant serves the request; beside `client_object`, the pointer is not read."""
    foreign_objects: Pointers = ()
    """JSON pointers to identifiers of objects that no route creates, such as `/conversation` of OpenAI's Responses.
    Requests with such an object are refused with status 404: it may be another client's, and engines check no
    tenant."""
    chosen_by_engine: Pointers = ()
    """JSON pointers to members that requests must not have, because the engine chooses them, such as an identifier that
    could be another client's: such requests are refused with status 400."""
    occupies_slot: bool = True
    """Whether a request occupies a slot of its endpoint. false is for a WebSocket that only carries notifications."""
    converter: Literal["", "comfyui", "comfyui-file"] = ""
    """API that the agent operates for the client. `comfyui`: a request is one workflow of ComfyUI, and the response its
    images. `comfyui-file`: a request is for a file of a prompt (`prompt_id`), and is sent only if the history of the
    prompt names the file. Empty: the endpoint receives the request itself."""
    offered: bool = True
    """Whether the fleet serves such requests. false: they are refused with status 501."""
    preset: Annotated[str, DERIVED] = ""
    """Of a route that is not offered: the preset that lists it; empty for a route of the bundle."""
    source: Annotated[str, DERIVED] = ""
    """File and line of the route in the bundle; empty for a route of a preset."""

    @property
    def creates_objects(self) -> bool:
        """Whether a response contains the identifier of a new object."""
        return self.object_id.startswith("/")

    @property
    def continues_objects(self) -> bool:
        """Whether a request may continue from an earlier object."""
        return self.previous_object != "" and not self.client_object

    @property
    def object_parameter(self) -> str:
        """Path parameter, or `?` and query parameter, with the identifier of an existing object; empty if none."""
        return "" if self.creates_objects else self.object_id


class RoutePresets(PolicyStruct, frozen=True):
    """The APIs that the fleet serves. Without this document, the preset `openai` applies. At most one per bundle."""

    presets: tuple[str, ...] = ("openai",)
    """Names of presets; `penstock policy presets` lists them."""
    models: dict[str, ModelName] = msgspec.field(default_factory=dict)
    """Fixed model of presets whose requests name no model, by preset. Without a fixed model, the header `x-model` or
    the query parameter `model` names the model."""
