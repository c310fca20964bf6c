"""The routes of a preset as documents of kind Route, to be changed in a bundle of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import yaml

from control_plane.policy.kinds.base import API_VERSION
from penstock.routes.route import Route


def route_documents(routes: Iterable[Route]) -> str:
    """YAML with one document a route, which compiles to the same routes."""
    return "---\n".join(
        yaml.safe_dump(route_document(route), sort_keys=False, default_flow_style=None, width=120) for route in routes
    )


def route_document(route: Route) -> dict[str, Any]:
    """One document; fields with default values are left out."""
    values: dict[str, Any] = msgspec.to_builtins(route, order="sorted")
    for field in ("source", "preset"):
        values.pop(field, None)
    return {"apiVersion": API_VERSION, "kind": "Route", "name": values.pop("name"), "path": values.pop("path")} | values
