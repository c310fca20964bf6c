"""The checks of the requests of a batch that depend on policy and sender."""

from __future__ import annotations

import re
from typing import Final

from penstock.jobs.batches.request_line import LineChecks
from penstock.policy.policy import Policy
from penstock.routes.route import BodyKind, StreamKind
from penstock.routes.route_table import RouteMatch
from penstock.routing.reasons import Refusal
from regional_agent.requests.authorization import Authorization, Sender

MAX_CHECKED: Final = 1000
"""Names of models whose check is kept for the rest of an upload."""

_URL: Final = re.compile(r"/[A-Za-z0-9._~/:%-]{0,255}")


def line_checks(policy: Policy, authorization: Authorization, sender: Sender) -> LineChecks:
    """The checks of the lines of an upload, by policy and sender."""
    urls: dict[str, str] = {}
    models: dict[str, str] = {}

    def check_url(url: str) -> str:
        problem = urls.get(url)
        if problem is None:
            problem = _problem_of_url(policy, sender, url)
            if len(urls) < MAX_CHECKED:
                urls[url] = problem
        return problem

    def check_model(model: str) -> str:
        problem = models.get(model)
        if problem is None:
            mask = authorization.mask_by_name(policy, model, sender.principal, sender.facts)
            problem = mask.detail if isinstance(mask, Refusal) else ""
            if len(models) < MAX_CHECKED:
                models[model] = problem
        return problem

    return LineChecks(check_url, check_model)


def _problem_of_url(policy: Policy, sender: Sender, url: str) -> str:
    found = policy.route_table.find(b"POST", url.encode()) if _URL.fullmatch(url) else None
    if not isinstance(found, RouteMatch) or found.route.body is not BodyKind.JSON:
        return f"no requests with a JSON body are served at {url[:128]!r}"
    if found.route.stream is StreamKind.WEBSOCKET or found.route.object_parameter:
        return f"requests at {url[:128]!r} cannot be part of a batch"
    if sender.principal.routes is not None and not sender.principal.permits_route(found.route.name):
        return f"the tenant may not use {url[:128]!r}"
    return ""
