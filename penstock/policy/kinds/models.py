"""Kinds of policy documents: models, their cost and their queues, and names that several models serve."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from penstock.policy.fields import (
    DERIVED,
    REQUIRED,
    AdapterPattern,
    Conflict,
    DataClassRef,
    Label,
    ModelName,
    ModelRef,
    NonEmpty,
    PolicyStruct,
    RegionRef,
    Revision,
    TierRef,
    bounds,
)
from penstock.policy.kinds.on_demand import OnDemand
from penstock.policy.kinds.warm_up import WarmUp
from penstock.policy.service_objective import ServiceObjective
from penstock.routes.route import CostFields, Timeouts


class CostUnit(StrEnum):
    """Unit of the cost of a model's requests."""

    TOKEN = "token"
    MEGAPIXEL_STEP = "megapixel_step"
    AUDIO_SECOND = "audio_second"
    TENSOR_ELEMENT = "tensor_element"
    REQUEST = "request"


class Cost(PolicyStruct, frozen=True):
    """Cost of a model's requests: time of one request alone on an H100. A prior that agents correct from traffic."""

    unit: Annotated[CostUnit, REQUIRED] = CostUnit.REQUEST
    """Unit of cost: tokens of language models; 10^6 pixels times steps of image models; seconds of speech; elements of
    all input tensors (Open Inference Protocol); or requests, each of which costs the same."""
    input_unit_s: Annotated[float, bounds(ge=0, le=60)] = 0.0
    """Time (s) for one unit of input: an uncached prompt token. 0 where input costs nothing."""
    output_unit_s: Annotated[float, bounds(gt=0, le=3600), REQUIRED] = 5.0
    """Time (s) for one unit of output: a generated token, a megapixel step, a second of speech, a tensor element, a
    request."""

    def on_route(self, fields: CostFields) -> Cost:
        """The cost of requests with these fields: of tokens if no cost is stated and the requests are of text."""
        if self.unit is _REQUEST and fields.is_text and self == UNSTATED_COST:
            return TOKEN_COST
        return self


_REQUEST: Final = CostUnit.REQUEST
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

UNSTATED_COST: Final = Cost()
TOKEN_COST: Final = Cost(CostUnit.TOKEN, input_unit_s=0.000031, output_unit_s=0.0069)
"""Tokens of a model of 8 billion parameters in 16 bits on an H100."""


class Scaling(PolicyStruct, frozen=True):
    """Inputs of the capacity recommendations (`penstock capacity`). Penstock itself starts no endpoints."""

    cold_start_s: Annotated[float, bounds(ge=0, le=86_400)] = 300.0
    """Time (s) from the request for an endpoint until the endpoint serves at full speed: provisioning of a node, pull
    of the image, loading of the weights, warm-up. Demand is forecast at least this far ahead."""
    gpus_per_endpoint: Annotated[float, bounds(gt=0, le=10_000)] = 1.0
    """Number of GPUs of one endpoint, from which GPU seconds and cost are computed."""
    slots_per_endpoint: Annotated[int, bounds(ge=1, le=1_000_000)] = 8
    """Maximum concurrent requests of one endpoint. A prior, used for regions that report no endpoint of the model."""
    min_endpoints: Annotated[int, bounds(ge=0, le=100_000)] = 0
    """Minimum number of endpoints in each region that has the model, regardless of demand."""
    max_endpoints: Annotated[int, bounds(ge=0, le=100_000)] = 10_000
    """Maximum number of endpoints in each region."""
    regions: tuple[RegionRef, ...] | UnsetType = UNSET
    """Names of the regions that have a recommendation even while they have no endpoint of the model, so that an
    autoscaler can scale from zero. Absent: none; a region without an endpoint gets no recommendation."""

    def conflict(self) -> Conflict | None:
        if self.max_endpoints >= self.min_endpoints:
            return None
        return Conflict("max_endpoints is below min_endpoints", "raise max_endpoints")


class QueueOrder(StrEnum):
    """Order in which the waiting requests of a tenant are served."""

    SHORTEST = "shortest"
    DEADLINE = "deadline"
    ARRIVAL = "arrival"


DEFAULT_MAX_WAIT_S: Final = 20.0
"""Maximum wait (s) of a request, after which the client or its load balancer has a better choice."""

WAIT_SERVICE_TIMES: Final = 2.0
"""The default maximum wait is at least this number of service times: a request may wait for the one before it."""


DEFAULT_RESERVE_PERCENT: Final = 5.0
DEFAULT_AGING_S: Final = 10.0


class Queueing(PolicyStruct, frozen=True):
    """The admission queues of a model: how long and how many requests wait, and the order of the requests of one tenant
    and priority. Of the tenants of one priority, the one that has received the least work is served first."""

    order: QueueOrder = QueueOrder.SHORTEST
    """`shortest`: by deadline plus a delay that grows with the expected work of the request, which shortens the mean
    and median wait when engines are full. `deadline`: earliest deadline first. `arrival`: oldest request first,
    regardless of deadlines."""
    max_overtaken_s: Annotated[float, bounds(ge=0, le=3600)] = 10.0
    """For `shortest`: a request is not overtaken by requests that arrive more than this time (s) after it. A higher
    value shortens the median wait and lengthens the longest waits."""
    max_wait_s: Annotated[float, bounds(ge=0, le=3600)] | None = None
    """Time (s) for which a request may wait for a slot, or for an endpoint that loads, restarts or was scaled to zero,
    in all regions together. A request that is expected to wait longer is refused at once, except before the first
    request was measured, if `expected_service_s` is its default; 0: never wait. null: 20, or twice
    `expected_service_s`, or twice the measured time in which a slot of an endpoint becomes free, whichever is
    longest."""
    max_length: Annotated[int, bounds(ge=1, le=1_000_000)] = 4096
    """Maximum number of requests that wait at one agent. A full queue refuses or displaces requests of the tenant that
    has most in it."""
    wait_is_set: Annotated[bool | UnsetType, DERIVED] = UNSET
    """Whether the document sets `max_wait_s`. Written only where the value is that of a document without the field."""
    reserve_percent: Annotated[float, bounds(ge=0, le=50)] | UnsetType = UNSET
    """Share (%) of the work of higher priorities that a lower priority with waiting requests receives; 0: none. Absent:
    5."""
    aging_s: Annotated[float, bounds(ge=0, le=3600)] | UnsetType = UNSET
    """Time (s) without a start after which a priority with waiting requests has one turn before higher ones; 0: never.
    Absent: 10."""
    preempt_batch: bool | UnsetType = UNSET
    """Whether agents end running batch requests of the model when a request with a priority would wait for a slot
    otherwise; batch requests wait again, and each is preempted three times at most. For engines that stop computing
    when the connection closes, such as vLLM, SGLang and TGI. Absent: no."""
    preempt_wait_percent: Annotated[float, bounds(ge=0, le=100)] | UnsetType = UNSET
    """Part (%) of the measured time for which a request of the model holds a slot: so long a request with a priority
    waits for a slot before it ends a batch request that has run for more than a third of this time. A younger one ends
    at once. Batches then lose less work. Absent: 0, any batch request ends at once."""

    @property
    def reserve(self) -> float:
        """Share (0-1) of the work of higher priorities that a lower priority with waiting requests receives."""
        return (DEFAULT_RESERVE_PERCENT if self.reserve_percent is UNSET else self.reserve_percent) / 100.0

    @property
    def aging(self) -> float:
        """Time (s) without a start after which a waiting priority has one turn; 0: never."""
        return DEFAULT_AGING_S if self.aging_s is UNSET else self.aging_s


class Model(PolicyStruct, frozen=True):
    """A model that clients may request by name. Which regions run a model is reported by agents, not written in
    policy."""

    name: ModelName
    """Name that clients use in requests."""
    expected_service_s: Annotated[float, bounds(ge=0.001, le=3600)] = 5.0
    """Time (s) for which one request occupies a slot. A prior, used until completions are measured."""
    request_bytes: Annotated[float, bounds(ge=0, le=1e9)] = 4_000.0
    """Mean size (bytes) of a request body: egress of the origin when another region serves the request. A prior, as the
    next: the planner uses the sizes that agents measure."""
    response_bytes: Annotated[float, bounds(ge=0, le=1e9)] = 4_000.0
    """Mean size (bytes) of a response body: egress of the serving region."""
    cost: Cost = Cost()
    """Cost of the model's requests for an endpoint; used to select the endpoint with the least expected work. Absent,
    or 5 s a request: requests of text (chats, completions, embeddings, and routes whose `cost` has `max_tokens`) cost
    tokens, as those of a model of 8 billion parameters do; all others cost the same."""
    fallback: ModelRef | None = None
    """Name of a lighter model that serves the requests while this model is ready in no permitted region, or while all
    permitted regions are full and the requests would time out in the queue. The response names the serving model in
    `x-penstock-model`. null: refuse instead."""
    service_objective: ServiceObjective | None = None
    """Target for the times of responses. `penstock status` and alerts report it, and a rollout that breaks it is rolled
    back; planning does not use it. null: no objective."""
    timeouts: Timeouts = Timeouts()
    """Time limits of the model's requests; a limit that is set here takes precedence over the limit of the route."""
    continue_streams: bool = False
    """Whether another endpoint continues a streamed chat or text completion whose endpoint or serving region fails.
    Requires vLLM or SGLang. Tool calls, reasoning, log probabilities, structured outputs and `n` above 1 are never
    continued."""
    adapters: Annotated[tuple[AdapterPattern, ...], Meta(extra_json_schema={"maxItems": 64})] = ()
    """Patterns of the names of this model's adapters, such as `llama-3-8b-*`; `*` stands for any characters. A request
    for such a name is planned, queued and charged as a request for this model, and is served only by endpoints that
    list the adapter: in `/v1/models` of the engine, with this model as its `parent`, or in `adapters` of the
    endpoint's entry."""
    scaling: Scaling = Scaling()
    """Inputs of the capacity recommendations. Routing uses `cold_start_s` alone: for that time after an endpoint ceased
    to be ready, requests wait for it."""
    queueing: Queueing = Queueing()
    """How long and how many of the model's requests wait in the admission queue, and in which order they leave it."""
    only_tiers: NonEmpty[tuple[TierRef, ...]] | UnsetType = UNSET
    """Tiers whose tenants alone may use the model: a pool of their own, with its own endpoints, plan and queue. To all
    others the model does not exist. Without the field, every tenant may use it."""

    expected_revision: Revision | UnsetType = UNSET
    """Pattern of what engines must report as root, revision or digest of the model; `*` stands for any characters:
    `root` of vLLM's and SGLang's `/v1/models`, `model_id@model_sha` of TGI, the digest of Ollama. Endpoints that report
    something else are marked and raise an alert; those that report nothing are not. Spelling makes no difference: a
    short and a full hash, `refs/pr/1` and `pr/1`, a path in a cache of Hugging Face. Absent: endpoints are compared
    with each other."""
    refuse_skewed: bool | UnsetType = UNSET
    """Whether endpoints that report another revision than `expected_revision` receive no requests for the model.
    Absent: no."""
    on_demand: OnDemand | UnsetType = UNSET
    """How endpoints of the model wake and sleep. Absent: agents neither wake endpoints nor let them sleep."""
    warm_up: WarmUp | UnsetType = UNSET
    """Synthetic requests before an endpoint that has loaded the model counts as ready. Absent: none."""
    only_data_classes: NonEmpty[tuple[DataClassRef, ...]] | UnsetType = UNSET
    """Data classes whose requests alone may use the model; with `only_tiers`, both conditions apply. The data class of
    a request is that of its tenant, or of its token. Absent: requests of every data class."""
    only_tenants: NonEmpty[tuple[Label, ...]] | UnsetType = UNSET
    """Tenants, of the bundle or created over the API, that alone may use the model; the other conditions apply too.
    Absent: every tenant."""

    def conflict(self) -> Conflict | None:
        if self.refuse_skewed is not True or self.expected_revision is not UNSET:
            return None
        return Conflict("refuse_skewed without expected_revision", "add expected_revision, or remove refuse_skewed")

    @property
    def is_reserved(self) -> bool:
        """Whether only some tenants may use the model."""
        return any(only is not UNSET for only in self.reserved_for)

    @property
    def reserved_for(self) -> tuple[tuple[str, ...] | UnsetType, ...]:
        """The tiers, data classes and tenants that may use the model."""
        return self.only_tiers, self.only_data_classes, self.only_tenants

    @property
    def default_max_wait_s(self) -> float:
        """Maximum wait (s) of its requests if the policy sets none and no request has been measured."""
        return max(DEFAULT_MAX_WAIT_S, WAIT_SERVICE_TIMES * self.expected_service_s)

    @property
    def max_wait_s(self) -> float:
        """Maximum wait (s) of its requests, in all regions together."""
        return self.default_max_wait_s if self.queueing.max_wait_s is None else self.queueing.max_wait_s

    @property
    def wait_follows_service(self) -> bool:
        """Whether the maximum wait grows with the measured service times, because the policy sets none."""
        return self.queueing.wait_is_set is UNSET and self.max_wait_s == self.default_max_wait_s


class Version(PolicyStruct, frozen=True):
    """One of the models that serve a name."""

    model: ModelRef
    """Name of a model of this bundle."""
    percent: Annotated[float, bounds(ge=0, le=100)]
    """Share of the requests (0-100); the shares of all versions sum to 100."""


class ModelVersions(PolicyStruct, frozen=True):
    """A name that several models serve: a canary has a small percentage, blue-green is 100 and 0.

    A session keeps its version while percentages are unchanged; of two versions, it keeps the one whose share grows. A
    session is identified by a header such as `x-session-id`, or `prompt_cache_key` or `user` in the body; requests
    without one are drawn independently. Uploads and tunnels, whose bodies are not rewritten, get the version whose name
    was requested.
    """

    name: ModelName
    """Name that clients use. If a model has the same name, that model must be one of the versions."""
    versions: NonEmpty[tuple[Version, ...]]
    """The versions. Keep their order when percentages change, so that sessions keep their versions."""
    for_tiers: dict[TierRef, ModelRef] | UnsetType = UNSET
    """Model by tier, which serves all requests of the tier's tenants for the name, in place of the versions: a pool of
    their own, or a version that they try first."""
    for_data_classes: dict[DataClassRef, ModelRef] | UnsetType = UNSET
    """Model by data class, which serves all requests of the data class for the name, in place of the versions, of
    `for_tenants` and of `for_tiers`."""
    for_tenants: dict[Label, ModelRef] | UnsetType = UNSET
    """Model by tenant, which serves all its requests for the name, in place of the versions and of `for_tiers`."""

    def conflict(self) -> Conflict | None:
        if abs(sum(version.percent for version in self.versions) - 100.0) > 1e-6:
            return Conflict("the percentages do not sum to 100", "write 0 for a version without traffic")
        if len({version.model for version in self.versions}) < len(self.versions):
            return Conflict("names a model twice", "write each version once")
        return None
