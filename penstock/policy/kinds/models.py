"""Kinds of policy documents: models, their cost and their queues, and names that several models serve."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.policy.fields import PolicyStruct
from penstock.policy.service_objective import ServiceObjective
from penstock.routes.route import Timeouts


class CostUnit(StrEnum):
    """Unit of the cost of a model's requests."""

    TOKEN = "token"
    """Language models: prompt tokens as input, generated tokens as output."""
    MEGAPIXEL_STEP = "megapixel_step"
    """Image models: 10^6 pixels of each image, times denoising steps."""
    AUDIO_SECOND = "audio_second"
    """Speech models: seconds of generated speech."""
    TENSOR_ELEMENT = "tensor_element"
    """Models behind the Open Inference Protocol: elements of all input tensors."""
    REQUEST = "request"
    """Anything else: every request costs the same."""


class Cost(PolicyStruct, frozen=True):
    """The cost of a model's requests: time on the reference accelerator (H100, `penstock.policy.accelerators`) without
    other requests.

    The cost is a prior: the speed of each endpoint and the lengths of prompts and answers are learned from traffic.
    """

    unit: CostUnit = CostUnit.REQUEST
    input_unit_s: float = 0.0
    """Time (s) of one unit of input: a prompt token that is not cached. 0 for units without input."""
    output_unit_s: float = 5.0
    """Time (s) of one unit of output: a generated token, a megapixel step, a second of speech, a tensor element, a
    request."""


class Scaling(PolicyStruct, frozen=True):
    """Parameters of the capacity recommendations for a model."""

    cold_start_s: float = 300.0
    """Time (s) from the order of an endpoint until it serves at full speed."""
    gpus_per_endpoint: float = 1.0
    """GPUs of one endpoint."""
    slots_per_endpoint: int = 8
    """Concurrent requests of one endpoint, used in regions that report none."""
    min_endpoints: int = 0
    """Minimum number of endpoints in each region that serves the model."""
    max_endpoints: int = 10_000
    """Maximum number of endpoints in each region."""


class QueueOrder(StrEnum):
    """Order in which the waiting requests of a tenant are served."""

    SHORTEST = "shortest"
    DEADLINE = "deadline"
    ARRIVAL = "arrival"


DEFAULT_MAX_WAIT_S: Final = 20.0
"""Maximum wait (s) of a request, after which the client or its load balancer has a better choice."""


WAIT_SERVICE_TIMES: Final = 2.0
"""The default maximum wait is at least this number of service times: a request may wait for the one before it."""


def default_max_wait_s(expected_service_s: float) -> float:
    """Maximum wait (s) of requests for a model whose document sets none, by its expected service time (s)."""
    return max(DEFAULT_MAX_WAIT_S, WAIT_SERVICE_TIMES * expected_service_s)


class Queueing(PolicyStruct, frozen=True):
    """Service discipline of the admission queues of a model."""

    order: QueueOrder = QueueOrder.SHORTEST
    max_overtaken_s: float = 10.0
    """Arrivals later than this time (s) after a request do not overtake it, whatever its work."""
    max_wait_s: float = DEFAULT_MAX_WAIT_S
    """Maximum wait (s) of a request, in all regions together."""
    follows_service: bool = False
    """Whether the maximum wait grows with the measured service times, because the policy sets none."""
    max_length: int = 4096
    """Maximum number of requests that wait at one agent."""


class Model(PolicyStruct, frozen=True):
    """A model that clients may request by name."""

    name: str
    expected_service_s: float = 5.0
    """Time (s) for which one request holds its slot; used until completions have been measured."""
    request_bytes: float = 4_000.0
    """Mean size (bytes) of a request body, which is egress of the origin if another region serves the request."""
    response_bytes: float = 4_000.0
    """Mean size (bytes) of a response body, which is egress of the serving region."""
    cost: Cost = Cost()
    """Cost of its requests at an endpoint."""
    fallback: str | None = None
    """Lighter model that serves the requests if no permitted region has this model, or all regions that have it are
    full; None refuses the requests."""
    service_objective: ServiceObjective | None = None
    """Objective of the time to first byte; None for no objective."""
    timeouts: Timeouts = Timeouts()
    """Time limits of requests for the model; a limit that is set here takes precedence over the limit of the route."""
    continue_streams: bool = False
    """Whether another endpoint continues a streamed answer whose endpoint or region failed."""
    adapters: tuple[str, ...] = ()
    """Patterns of the names of its adapters, which `penstock.policy.adapter_patterns` matches."""
    scaling: Scaling = Scaling()
    queueing: Queueing = Queueing()
    """Service discipline of its admission queues."""


class Version(PolicyStruct, frozen=True):
    """A model that serves requests for a versioned name."""

    model: str
    percent: float
    """Share (0-100) of the requests for the name that the model serves."""


class ModelVersions(PolicyStruct, frozen=True):
    """A name that clients request, and the models that serve it."""

    name: str
    versions: tuple[Version, ...]
    """Versions in the order in which they occupy the scale, see `penstock.policy.model_versions`."""
