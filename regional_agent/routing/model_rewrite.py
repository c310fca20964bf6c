"""A request's body made to ask for another model: one version of what was asked for, or a lighter one.

Only the model's name is changed, in place; everything else goes on as it came, byte for byte.
"""

from __future__ import annotations

import msgspec

from regional_agent.http.messages import Request
from regional_agent.routing.classify import RequestFields, classify
from regional_agent.routing.model_name import is_json, model_span


def can_be_served_as_another(request: Request) -> bool:
    """Whether its body can be changed: JSON that is here to its end. Uploads and tunnels ask for what they ask for."""
    return request.whole and not request.upgrade and not request.body_dropped and is_json(request)


def serve_as(request: Request, model: str) -> RequestFields | None:
    """Make the body ask for `model`; what it asks for then. None, and nothing changed, where it cannot be told how.

    So it is where the name is not written plainly, or twice: then the engine might read another than the agent.
    """
    if not can_be_served_as_another(request):
        return None
    span = model_span(request.body)
    if span is None:
        return None
    start, end = span
    body = request.body[:start] + msgspec.json.encode(model)[1:-1] + request.body[end:]
    asked = classify(body)
    if not isinstance(asked, RequestFields) or asked.model != model:
        return None
    request.body, request.length = body, len(body)
    return asked
