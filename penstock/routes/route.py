"""A route: a kind of request that the fleet accepts, as policy describes it.

Fields are located by JSON pointers (RFC 6901). A tuple of pointers lists alternatives: the first that the body contains
is used. A time limit of None takes the agent's limit.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

API_KEY_HEADERS = frozenset({"api-key", "ocp-apim-subscription-key", "x-api-key", "x-goog-api-key"})
"""Headers with an API key, in addition to Authorization. An agent never forwards a client's key to engines or peers."""


class RouteStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of all parts of a route. Rejects unknown fields, because such a field could restrict the known fields."""


class ModelSource(StrEnum):
    """Part of a request that names the model."""

    PATH = "path"
    """A parameter of the path template."""
    JSON = "json"
    """A JSON pointer into the body."""
    FORM = "form"
    """A field of a multipart form."""
    HEADER = "header"
    QUERY = "query"
    FIXED = "fixed"
    """The route itself: every request is for one model."""


class ModelLocation(RouteStruct, frozen=True):
    """A location in a request at which the request may name its model."""

    source: ModelSource
    name: str
    """Name of the path parameter, form field, header or query parameter; the JSON pointer; or the fixed model."""


class BodyKind(StrEnum):
    """How an agent handles the body of a request."""

    NONE = "none"
    """The method has no body."""
    JSON = "json"
    UPLOAD = "upload"
    """A multipart form or a media file, or JSON by its Content-Type; forwarded as it arrives."""
    OPAQUE = "opaque"
    """Any bytes; never parsed, and forwarded as they arrive."""


class StreamKind(StrEnum):
    """Format of a response that arrives in parts."""

    NONE = "none"
    SSE = "sse"
    """Server-sent events."""
    NDJSON = "ndjson"
    """One JSON value a line."""
    CHUNKED = "chunked"
    """Any other bytes, such as audio."""
    WEBSOCKET = "websocket"
    """The request is an upgrade to a WebSocket, which is tunnelled."""


class ErrorFormat(StrEnum):
    """Format of the error responses that the agent itself creates."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    KSERVE = "kserve"
    PROBLEM = "problem"
    """Problem details (RFC 9457)."""


class Timeouts(RouteStruct, frozen=True):
    """Time limits (s) of requests; None takes the next more general limit, in the order model, route, agent."""

    connect_s: float | None = None
    """Maximum time (s) to open a connection to an endpoint."""
    first_byte_s: float | None = None
    """Maximum time (s) from sending a request to the first byte of a response that is not streamed."""
    stream_first_byte_s: float | None = None
    """Maximum time (s) from sending a request to the first byte of a streamed response."""
    idle_s: float | None = None
    """Maximum time (s) between two parts of a response."""
    total_s: float | None = None
    """Maximum time (s) from the receipt of a request to the end of its response."""


class CostFields(RouteStruct, frozen=True):
    """JSON pointers to the quantities that determine the cost of a request; the cost unit selects among them."""

    generates: bool = True
    """Whether tokens are generated; embeddings and scores generate none."""
    prompt: tuple[str, ...] = ()
    """The prompt: a text, messages, or content parts."""
    max_tokens: tuple[str, ...] = ()
    """Limit on generated tokens."""
    count: tuple[str, ...] = ()
    """Number of results requested at once."""
    batches: tuple[str, ...] = ()
    """Number of times that `count` results are requested."""
    size: tuple[str, ...] = ()
    """Size of an image as one text, such as "1024x768"."""
    width: tuple[str, ...] = ()
    """Width (pixels) of an image."""
    height: tuple[str, ...] = ()
    """Height (pixels) of an image."""
    steps: tuple[str, ...] = ()
    """Denoising steps."""
    speech: tuple[str, ...] = ()
    """Text to be spoken."""
    seconds: tuple[str, ...] = ()
    """Duration (s) of audio."""
    tensors: tuple[str, ...] = ()
    """Array of tensors, each with a `shape` (Open Inference Protocol)."""


class UsageFields(RouteStruct, frozen=True):
    """Where a response states its usage, as JSON pointers."""

    objects: tuple[str, ...] = ("/usage",)
    """Pointers to the objects with the numbers, in the response or in the data of an event; an empty pointer is the
    response itself. Of several statements of one number, the last counts."""
    prompt_tokens: tuple[str, ...] = ("/prompt_tokens",)
    """Pointers to the numbers of prompt tokens below an object. Their sum counts, cached tokens included."""
    answer_tokens: tuple[str, ...] = ("/completion_tokens",)
    """Pointers to the numbers of generated tokens below an object; their sum counts."""
    cached_tokens: tuple[str, ...] = ("/prompt_tokens_details/cached_tokens",)
    """Pointers to the numbers of prompt tokens below an object that were read from a cache; their sum counts."""
    request: str = ""
    """Pointer to the flag by which a request asks for the usage of a stream; empty if streams need none. The agent sets
    the flag where the client does not, and hides the event that only states the usage."""


class Route(RouteStruct, frozen=True):
    """A kind of request that the fleet accepts."""

    name: str
    path: str
    """Path template. A segment `{name}` is a parameter, which matches one non-empty segment."""
    methods: frozenset[str] = frozenset({"POST"})
    model: tuple[ModelLocation, ...] = ()
    """Locations of the model's name; all names in one request must agree. Empty if requests name an object instead, and
    for routes that are not offered."""
    body: BodyKind = BodyKind.JSON
    stream: StreamKind = StreamKind.NONE
    """Format of a response that is streamed."""
    stream_field: str = ""
    """JSON pointer to the flag by which a client requests a stream; empty if every response is streamed, or none is."""
    streams_by_default: bool = False
    """Whether a response is streamed if the flag is absent."""
    repeatable: bool = True
    """Whether a request may be sent again if an endpoint may have started the request but has sent no response."""
    timeouts: Timeouts = Timeouts()
    cost: CostFields = CostFields()
    usage: UsageFields = UsageFields()
    errors: ErrorFormat = ErrorFormat.OPENAI
    api_key_header: str = ""
    """Header with the API key, in addition to `Authorization: Bearer`: one of API_KEY_HEADERS; empty for none."""
    session: tuple[str, ...] = ()
    """JSON pointers to the name of the conversation; the first that the body contains is used."""
    message_model: tuple[str, ...] = ()
    """Of a WebSocket: JSON pointers into the messages of the client that may name a model. A message that names a model
    which the policy refuses to the client is not forwarded."""
    object_id: str = ""
    """Of a route that creates an object: JSON pointer to its identifier in the response. In an event stream, the
    pointer applies to the data of an event, or to the member `response` of the data. Of a route for an existing object:
    the path parameter with the identifier, or `?name` for a query parameter. Such a request is sent to the endpoint
    that created the object for the same tenant, or refused. The request names no model, unless the query parameter is
    optional."""
    client_object: str = ""
    """Where a request contains an identifier that its client chose: a JSON pointer into the body, or `?name` for a
    query parameter. The first endpoint that accepts such a request is preferred for later requests with the
    identifier."""
    previous_object: str = ""
    """JSON pointer to the identifier of an earlier object in a request that creates one: the endpoint that has the
    earlier object is preferred."""
    occupies_slot: bool = True
    """Whether a request needs a free slot of its endpoint; False for a WebSocket that only sends notifications."""
    offered: bool = True
    """Whether the fleet offers the route; requests for a route that is not offered are refused with status 501."""
    preset: str = ""
    """Of a route that is not offered: the preset that lists it; empty for a route of the bundle."""
    source: str = ""
    """File and line of the route in the bundle; empty for a route of a preset."""

    def __post_init__(self) -> None:
        """Raises ValueError for a key header that is not in API_KEY_HEADERS, because that header would be forwarded."""
        if self.api_key_header and self.api_key_header not in API_KEY_HEADERS:
            names = ", ".join(sorted(API_KEY_HEADERS))
            raise ValueError(f"api_key_header {self.api_key_header!r} is none of {names}")

    @property
    def creates_objects(self) -> bool:
        """Whether a response contains the identifier of a new object."""
        return self.object_id.startswith("/")

    @property
    def object_parameter(self) -> str:
        """Path parameter, or `?` and query parameter, with the identifier of an existing object; empty if none."""
        return "" if self.creates_objects else self.object_id
