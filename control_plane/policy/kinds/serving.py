"""What is served; which regions run it is a fact that agents report, not policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from control_plane.policy.kinds.shape import ModelName, PolicyDocument


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
