"""`/livez`, `/readyz` and `/metrics`: liveness, readiness and metrics. Only metrics require a
caller."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from control_plane.api.openapi import returns
from control_plane.api.responses import Problem, json_response
from control_plane.api.serving.api_threads import in_api_thread
from control_plane.auth.required_roles import Monitor
from control_plane.metrics import CONTENT_TYPE, ControlPlaneMetrics
from control_plane.policy.source.policy_source import PolicySource
from control_plane.status.status_reporter import StatusReporter


class Ready(msgspec.Struct, frozen=True):
    """Response of /readyz when the control plane is ready."""

    ready: bool
    policy_refused: tuple[str, ...]
    """Errors of the policy source's newest revision; empty if it was accepted."""


def routes(reporter: StatusReporter, policies: PolicySource) -> APIRouter:
    """Return the router of health, which requires no caller."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses=returns(str, "The process is live.", media_type="text/plain"))
    async def alive() -> Response:
        """Check that the process responds."""
        return Response("ok\n", media_type="text/plain")

    @router.get("/readyz", responses=returns(Ready, "The control plane is ready."))
    async def ready() -> Response:
        """Check that this control plane can lead. A 503 response states the reasons that prevent it."""
        reasons = reporter.not_ready()
        if reasons:
            raise Problem(503, "; ".join(reasons), reasons=reasons)
        return json_response(Ready(True, policies.errors))

    return router


def metrics_routes(metrics: ControlPlaneMetrics) -> APIRouter:
    """Return the router of metrics."""
    router = APIRouter(tags=["health"])

    @router.get("/metrics", responses=returns(str, "Metrics.", media_type="text/plain"))
    async def render_metrics(caller: Monitor) -> Response:
        """Get the metrics in Prometheus' text format. A client certificate of the role monitor suffices."""
        return Response(await in_api_thread(metrics.render), media_type=CONTENT_TYPE)

    return router
