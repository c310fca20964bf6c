"""What is served; which regions run it is a fact that agents report, not policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.shape import ModelName, PolicyDocument, Shape


class CostShape(Shape):
    """What a model's requests cost: time on an H100, alone. A prior; agents learn the rest from traffic."""

    unit: Literal["token", "megapixel_step", "audio_second", "request"]
    """What is counted: tokens of language models; 10^6 pixels times steps of image models; seconds of speech; or just
    requests, each of which costs the same."""
    input_unit_s: float = Field(ge=0, le=60)
    """Time (s) that one unit of input takes: a prompt token that no cache spares. 0 where input costs nothing."""
    output_unit_s: float = Field(gt=0, le=3600)
    """Time (s) that one unit of output takes: a generated token, a megapixel step, a second of speech, a request."""


class ModelDocument(PolicyDocument):
    """A model that clients may ask for."""

    kind: Literal["Model"]
    name: ModelName
    """The name that clients use."""
    expected_service_s: float = Field(gt=0, le=3600)
    """How long (s) one request holds its slot, until completions have been seen."""
    request_bytes: float = Field(ge=0, le=1e9)
    """Mean size (bytes) of a request's body: what leaves its origin when another region serves it."""
    response_bytes: float = Field(ge=0, le=1e9)
    """Mean size (bytes) of an answer's body: what comes back from there."""
    cost: CostShape
    """What its requests cost an endpoint: where least work is sought, and for how long a request will hold its slot."""
