"""Converts the routes of a preset to documents of kind Route, which a bundle may contain in modified form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import yaml

from control_plane.policy.document_fields import document_fields
from control_plane.policy.kinds import API_VERSION
from penstock.routes.route import Route


def route_documents(routes: Iterable[Route]) -> str:
    """Return YAML with one document for each route; the documents compile to the same routes."""
    return "---\n".join(
        yaml.safe_dump(route_document(route), sort_keys=False, default_flow_style=None, width=120) for route in routes
    )


def route_document(route: Route) -> dict[str, Any]:
    """Return the document of one route; fields with default values are omitted."""
    values: dict[str, Any] = msgspec.to_builtins(route, order="sorted")
    written = {name: values[name] for name in document_fields(Route) if name in values}
    return {"apiVersion": API_VERSION, "kind": "Route", **written}
