"""Finds the route of a request that is described but not sent, and creates the refusals of requests without a route."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec

from penstock.policy.adapter_patterns import served_model
from penstock.policy.model_versions import models_for
from penstock.policy.policy import Policy
from penstock.routes.presets.preset_registry import PRESETS, preset_routes
from penstock.routes.route import BodyKind, ModelSource, Route, StreamKind
from penstock.routes.route_table import WEBSOCKET, Miss, RouteMatch, RouteMiss, RouteTable
from penstock.routing.reasons import Reason, Refusal

MAX_SOUGHT_CHARS: Final = 256
"""Length of the longest path for which presets are searched."""


class MatchedRoute(msgspec.Struct, frozen=True):
    """The route of a request, with its requirements."""

    name: str
    path: str
    """Path template of the route."""
    source: str
    """File and line of the route; empty for a route of a preset."""
    parameters: dict[str, str]
    """Values of the path parameters."""
    requires: tuple[str, ...]
    """Parts that a request of the route must contain, as text for people."""


def matched_route(policy: Policy, method: str, path: str, model: str) -> MatchedRoute | Refusal:
    """The route of a request for `model`, or its refusal.

    Args:
        method: HTTP method, or `WEBSOCKET` for an upgrade to one.
        path: as sent, with or without a query.
    """
    sent, _, _ = path.partition("?")
    encoded = sent.encode("utf-8", "replace")
    as_bytes = WEBSOCKET if method.upper() == "WEBSOCKET" else method.upper().encode("utf-8", "replace")
    found = policy.route_table.find(as_bytes, encoded)
    if isinstance(found, RouteMiss):
        return refusal_of_miss(found, method.upper(), sent)
    route = found.route
    named = {found.parameters[place.name] for place in route.model if place.source is ModelSource.PATH}
    named |= {place.name for place in route.model if place.source is ModelSource.FIXED}
    others = {name for name in named if served_model(policy, name) != served_model(policy, model)}
    if others:
        other = ", ".join(sorted(others))
        return Refusal(Reason.BAD_REQUEST, f"the request names the model {other}, and not {model}")
    return _matched(found)


def unreached_models(policy: Policy) -> list[str]:
    """The models that no request can name, because all offered routes are for other models."""
    fixed: set[str] = set()
    for route in policy.routes:
        if route.offered and route.model:
            names = {place.name for place in route.model if place.source is ModelSource.FIXED}
            if not names:
                return []
            fixed |= names
    reached = {model for name in fixed for model in models_for(policy, served_model(policy, name))}
    pending = list(reached)
    while pending:
        model = policy.models.get(pending.pop())
        if model is not None and model.fallback is not None and model.fallback not in reached:
            reached.add(model.fallback)
            pending.append(model.fallback)
    return [name for name in policy.models if name not in reached]


def refusal_of_miss(found: RouteMiss, method: str, path: str) -> Refusal:
    """The refusal of a request without a route."""
    target = f"{method} {path}"
    match found.miss:
        case Miss.METHOD_NOT_ALLOWED:
            return Refusal(Reason.METHOD_NOT_ALLOWED, f"{path} has no method {method}", allow=found.allow)
        case Miss.UPGRADE_REQUIRED:
            return Refusal(Reason.UPGRADE_REQUIRED, f"{target} is served over WebSocket only")
        case Miss.NOT_OFFERED:
            return Refusal(Reason.NOT_OFFERED, f"this fleet does not offer {target}{_why_not_offered(found.route)}")
    presets = _presets_with(method, path) if len(path) <= MAX_SOUGHT_CHARS else []
    remedy = f"; the policy lacks the preset {' or '.join(presets)} (RoutePresets)" if presets else ""
    return Refusal(Reason.NOT_FOUND, f"nothing is served at {target}{remedy}")


@cache
def _tables() -> dict[str, RouteTable]:
    return {name: RouteTable(preset_routes(name)) for name in PRESETS}


def _presets_with(method: str, path: str) -> list[str]:
    """The presets with a route for a request; the policy of the request lacks all of them."""
    sent = method.encode("utf-8", "replace"), path.encode("utf-8", "replace")
    return [name for name, table in _tables().items() if isinstance(table.find(*sent), RouteMatch)]


def _why_not_offered(route: Route | None) -> str:
    if route is None:
        return ""
    if route.preset:
        return f": the preset {route.preset} does not offer {route.path}"
    return f": the policy does not offer the route {route.name}"


def _matched(found: RouteMatch) -> MatchedRoute:
    route = found.route
    return MatchedRoute(route.name, route.path, route.source, dict(found.parameters), tuple(_requires(route)))


def _requires(route: Route) -> list[str]:
    places = " or ".join(
        place.name if place.source is ModelSource.FIXED else f"{place.source.value} {place.name}"
        for place in route.model
    )
    parameter = route.object_parameter
    if parameter.startswith("?"):
        requires = [
            f"object: query {parameter[1:]}, or model: {places}" if places else f"object: query {parameter[1:]}"
        ]
    elif parameter:
        requires = [f"object: path {parameter}"]
    else:
        requires = [f"model: {places}"]
    if route.body is not BodyKind.NONE:
        requires.append(f"body: {route.body.value}")
    if route.stream is not StreamKind.NONE:
        asked = f", if {route.stream_field} is true" if route.stream_field else ""
        requires.append(f"streamed: {route.stream.value}{asked}")
    if route.api_key_header:
        requires.append(f"key: authorization or {route.api_key_header}")
    return requires
