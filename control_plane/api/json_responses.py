"""How the API answers: structs as JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import Response

JSON = "application/json"


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with `value` (a struct, or whatever msgspec encodes) as JSON."""
    return Response(msgspec.json.encode(value), status, headers, JSON)
