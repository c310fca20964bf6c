"""What is served; which regions run it is a fact that agents report, not policy."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from control_plane.policy.kinds.base import REMEDY, ModelName, NonEmptyList, PolicyDocument, StrictModel, Text


class CostSpec(StrictModel):
    """What a model's requests cost: time on an H100, alone. A prior; agents learn the rest from traffic."""

    unit: Literal["token", "megapixel_step", "audio_second", "request"]
    """What is counted: tokens of language models; 10^6 pixels times steps of image models; seconds of speech; or just
    requests, each of which costs the same."""
    input_unit_s: float = Field(0.0, ge=0, le=60)
    """Time (s) that one unit of input takes: a prompt token that no cache spares. 0 where input costs nothing."""
    output_unit_s: float = Field(gt=0, le=3600)
    """Time (s) that one unit of output takes: a generated token, a megapixel step, a second of speech, a request."""


class ServiceObjectiveSpec(StrictModel):
    """How soon most answers should begin, as clients see it: waiting, round trips and other regions are in it."""

    first_byte_s: float = Field(gt=0, le=600)
    """Time (s) from a client's request to the first byte of the answer's body."""
    share: float = Field(gt=0, lt=1)
    """The part (0-1, both not in it) of requests that are to be answered well and to begin within that; what fails
    misses it."""


class ModelDocument(PolicyDocument):
    """A model that clients may ask for."""

    kind: Literal["Model"]
    name: ModelName
    """The name that clients use."""
    expected_service_s: float = Field(5.0, ge=0.001, le=3600)
    """How long (s) one request holds its slot, until completions have been seen."""
    request_bytes: float = Field(4_000.0, ge=0, le=1e9)
    """Mean size (bytes) of a request's body: what leaves its origin when another region serves it."""
    response_bytes: float = Field(4_000.0, ge=0, le=1e9)
    """Mean size (bytes) of an answer's body: what comes back from there."""
    cost: CostSpec = CostSpec(unit="request", input_unit_s=0.0, output_unit_s=5.0)
    """What its requests cost an endpoint: where least work is sought, and for how long a request will hold its slot."""
    fallback: ModelName | None = None
    """Name of a lighter model that serves its requests while no permitted region has this one ready, or all are full
    and waiting is of no use; the answer says so in `x-penstock-model`. null refuses them instead."""
    service_objective: ServiceObjectiveSpec | None = None
    """How soon its answers should begin: agents count, `penstock status` shows it, alerts tell of it, a change of
    policy that breaks it comes back, and nothing is planned by it. null where nothing is wanted."""


class VersionSpec(StrictModel):
    """One of the models that a name stands for."""

    model: ModelName
    """Name of a model of this bundle."""
    percent: float = Field(ge=0, le=100)
    """Its share of the requests; those of all versions sum to 100."""


class ModelVersionsDocument(PolicyDocument):
    """A name that clients ask for and several models serve: a canary has a small percentage, blue-green is 100 and 0.

    A session keeps its version while the percentages stay, and the version whose share grows keeps all of its own.
    Sessions are named by an `x-session-id` header, or `prompt_cache_key` or `user` in the body; other requests are
    drawn one by one. Uploads and tunnels, whose bodies are not changed, get the version that has the name itself.
    """

    kind: Literal["ModelVersions"]
    name: ModelName
    """The name that clients use; a model of the same name must be among the versions."""
    description: Text = Field("", max_length=500)
    """For people: what is being tried, and until when."""
    versions: NonEmptyList[VersionSpec]
    """In an order that is kept while percentages change."""

    @model_validator(mode="after")
    def _sums_to_whole(self) -> Self:
        if abs(sum(one.percent for one in self.versions) - 100.0) > 1e-6:
            raise PydanticCustomError(
                REMEDY, "the percentages do not sum to 100", {"remedy": "write 0 for a version that gets nothing"}
            )
        if len({one.model for one in self.versions}) < len(self.versions):
            raise PydanticCustomError(REMEDY, "names a model twice", {"remedy": "write each version once"})
        return self
