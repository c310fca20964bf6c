"""Kinds for models and their versions. Which regions run a model is reported by agents, not written in policy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import (
    REMEDY,
    AdapterPattern,
    ModelName,
    NonEmptyList,
    PolicyDocument,
    StrictModel,
    Text,
    UniqueList,
)
from control_plane.policy.kinds.routes import TimeoutsSpec


class CostSpec(StrictModel):
    """Cost of a model's requests: time of one request alone on an H100. A prior that agents correct from traffic."""

    unit: Literal["token", "megapixel_step", "audio_second", "tensor_element", "request"]
    """Unit of cost: tokens of language models; 10^6 pixels times steps of image models; seconds of speech; elements of
    all input tensors; or requests, each of which costs the same."""
    input_unit_s: float = Field(0.0, ge=0, le=60)
    """Time (s) for one unit of input: an uncached prompt token. 0 where input costs nothing."""
    output_unit_s: float = Field(gt=0, le=3600)
    """Time (s) for one unit of output: a generated token, a megapixel step, a second of speech, a tensor element, a
    request."""


class ServiceObjectiveSpec(StrictModel):
    """Targets for the times of responses as clients see them: queueing, round trips and spillover are included. At
    least one limit must be set."""

    first_byte_s: float | None = Field(None, gt=0, le=600)
    """Time (s) from a client's request for a stream to the first byte of the response body. Counts streams only."""
    total_s: float | None = Field(None, gt=0, le=86_400)
    """Time (s) from a client's request to the end of a response that is not streamed. Counts such responses only."""
    share: float = Field(gt=0, lt=1)
    """Share (0-1, exclusive) of requests that must succeed within their limit; failed requests miss it."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.first_byte_s is None and self.total_s is None:
            raise ValueError("sets no limit; write first_byte_s for streams, or total_s for other responses")
        return self


class ScalingSpec(StrictModel):
    """Inputs of the capacity recommendations (`penstock capacity`). Penstock itself starts no endpoints."""

    cold_start_s: float = Field(300.0, ge=0, le=86_400)
    """Time (s) from the request for an endpoint until the endpoint serves at full speed: provisioning of a node, pull
    of the image, loading of the weights, warm-up. Demand is forecast at least this far ahead."""
    gpus_per_endpoint: float = Field(1.0, gt=0, le=10_000)
    """Number of GPUs of one endpoint, from which GPU seconds and cost are computed."""
    slots_per_endpoint: int = Field(8, ge=1, le=1_000_000)
    """Maximum concurrent requests of one endpoint. A prior, used for regions that report no endpoint of the model."""
    min_endpoints: int = Field(0, ge=0, le=100_000)
    """Minimum number of endpoints in each region that has the model, regardless of demand."""
    max_endpoints: int = Field(10_000, ge=0, le=100_000)
    """Maximum number of endpoints in each region."""

    @model_validator(mode="after")
    def _has_a_range(self) -> Self:
        if self.max_endpoints < self.min_endpoints:
            raise PydanticCustomError(REMEDY, "max_endpoints is below min_endpoints", {"remedy": "raise max_endpoints"})
        return self


class QueueingSpec(StrictModel):
    """The admission queues of a model: how long and how many requests wait, and the order of the requests of one tenant
    and priority. Between tenants, requests are served by arrival."""

    order: Literal["shortest", "deadline", "arrival"] = "shortest"
    """`shortest`: by deadline plus a delay that grows with the expected work of the request, which shortens the mean
    and median wait when engines are full. `deadline`: earliest deadline first. `arrival`: oldest request first,
    regardless of deadlines."""
    max_overtaken_s: float = Field(10.0, ge=0, le=3600)
    """For `shortest`: a request is not overtaken by requests that arrive more than this time (s) after it. A higher
    value shortens the median wait and lengthens the longest waits."""
    max_wait_s: float | None = Field(None, ge=0, le=3600)
    """Time (s) for which a request may wait for a slot, or for an endpoint that loads, restarts or was scaled to zero,
    in all regions together. A request that is expected to wait longer is refused at once; 0: never wait. null: 20,
    or twice `expected_service_s`, or twice the measured time in which a slot of an endpoint becomes free, whichever is
    longest."""
    max_length: int = Field(4096, ge=1, le=1_000_000)
    """Maximum number of requests that wait at one agent. A full queue refuses or displaces requests of the tenant that
    has most in it."""


class ModelDocument(PolicyDocument):
    """A model that clients may request by name."""

    kind: Literal["Model"]
    name: ModelName
    """Name that clients use in requests."""
    expected_service_s: float = Field(5.0, ge=0.001, le=3600)
    """Time (s) for which one request occupies a slot. A prior, used until completions are measured."""
    request_bytes: float = Field(4_000.0, ge=0, le=1e9)
    """Mean size (bytes) of a request body: egress of the origin when another region serves the request."""
    response_bytes: float = Field(4_000.0, ge=0, le=1e9)
    """Mean size (bytes) of a response body: egress of the serving region."""
    cost: CostSpec = CostSpec(unit="request", input_unit_s=0.0, output_unit_s=5.0)
    """Cost of the model's requests for an endpoint; used to select the endpoint with the least expected work."""
    fallback: ModelName | None = None
    """Name of a lighter model that serves the requests while this model is ready in no permitted region, or while all
    permitted regions are full and the requests would time out in the queue. The response names the serving model in
    `x-penstock-model`. null: refuse instead."""
    service_objective: ServiceObjectiveSpec | None = None
    """Target for the start of responses. `penstock status` and alerts report it, and a rollout that breaks it is rolled
    back; planning does not use it. null: no objective."""
    continue_streams: bool = False
    """Whether another endpoint continues a streamed chat or text completion whose endpoint or serving region fails.
    Requires vLLM or SGLang. Tool calls, reasoning, log probabilities, structured outputs and `n` above 1 are never
    continued."""
    queueing: QueueingSpec = QueueingSpec.model_validate({})
    """How long and how many of the model's requests wait in the admission queue, and in which order they leave it."""
    scaling: ScalingSpec = ScalingSpec.model_validate({})
    """Inputs of the capacity recommendations. Routing uses `cold_start_s` alone: for that time after an endpoint ceased
    to be ready, requests wait for it."""
    timeouts: TimeoutsSpec = TimeoutsSpec()
    """Time limits of the model's requests; a limit that is set here takes precedence over the limit of the route."""
    adapters: UniqueList[AdapterPattern] = Field([], max_length=64)
    """Patterns of the names of this model's adapters, such as `llama-3-8b-*`; `*` stands for any characters. A request
    for such a name is planned, queued and charged as a request for this model, and is served only by endpoints that
    list the adapter: in `/v1/models` of the engine, with this model as its `parent`, or in `adapters` of the
    endpoint's entry."""


class VersionSpec(StrictModel):
    """One of the models that serve a name."""

    model: ModelName
    """Name of a model of this bundle."""
    percent: float = Field(ge=0, le=100)
    """Share of the requests (0-100); the shares of all versions sum to 100."""


class ModelVersionsDocument(PolicyDocument):
    """A name that several models serve: a canary has a small percentage, blue-green is 100 and 0.

    A session keeps its version while percentages are unchanged, and keeps a version whose share grows. A session is
    identified by an `x-session-id` header, or `prompt_cache_key` or `user` in the body; requests without one are drawn
    independently. Uploads and tunnels, whose bodies are not rewritten, get the version whose name was requested.
    """

    kind: Literal["ModelVersions"]
    name: ModelName
    """Name that clients use. If a model has the same name, that model must be one of the versions."""
    description: Text = Field("", max_length=500)
    """Free text: the purpose of the split, and when it ends."""
    versions: NonEmptyList[VersionSpec]
    """The versions. Keep their order when percentages change, so that sessions keep their versions."""

    @model_validator(mode="after")
    def _sums_to_whole(self) -> Self:
        if abs(sum(version.percent for version in self.versions) - 100.0) > 1e-6:
            raise PydanticCustomError(
                REMEDY, "the percentages do not sum to 100", {"remedy": "write 0 for a version without traffic"}
            )
        if len({version.model for version in self.versions}) < len(self.versions):
            raise PydanticCustomError(REMEDY, "names a model twice", {"remedy": "write each version once"})
        return self
