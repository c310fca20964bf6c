"""Whether an endpoint has a model awake, and what it can be used for."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.health.endpoint_health import EndpointState
from penstock.on_demand.wake_history import MIN_OVERDUE_S
from penstock.policy.kinds.on_demand import WakeMethod
from regional_agent.endpoints.endpoint import Endpoint


def sleeps(endpoint: Endpoint, model: str) -> bool:
    """Whether a model of an endpoint sleeps, or what a webhook starts does not run."""
    method = endpoint.reported.wake_methods.get(model)
    if method is None:
        return False
    if method is WakeMethod.WEBHOOK:
        return not endpoint.health.ready
    return endpoint.health.ready and model not in endpoint.loaded_models


def is_unread(endpoint: Endpoint) -> bool:
    """Whether no probe has stated yet if an endpoint sleeps; after a while it counts as one that does not serve."""
    return endpoint.health.state is EndpointState.NEW and endpoint.now() - endpoint.out_since < MIN_OVERDUE_S


def is_awake(endpoint: Endpoint, model: str) -> bool:
    """Whether an endpoint answers its probes and has a model loaded, though it may be ejected or suspect."""
    return endpoint.health.ready and model in endpoint.loaded_models


def use_of(model: str, endpoint: Endpoint) -> tuple[bool, int, int]:
    """What an endpoint can be used for, in the order in which endpoints fall asleep: one that is ejected or suspect
    serves nothing, and a short context not every request."""
    return endpoint.view.ready, endpoint.reported.context_tokens(model), endpoint.view.in_flight


def serving(awake: Iterable[Endpoint]) -> int:
    """How many endpoints accept requests; one that is ejected or suspect is awake, and no capacity."""
    return sum(each.view.ready for each in awake)
