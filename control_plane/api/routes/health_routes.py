"""/livez, /readyz and /metrics: for whoever looks after the process. Open."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.problems import Problem
from control_plane.daemon import ControlPlane
from control_plane.metrics import CONTENT_TYPE


class Ready(msgspec.Struct, frozen=True):
    """What /readyz tells when all is well."""

    ready: bool
    policy_refused: tuple[str, ...]
    """What is wrong with the policy as it is offered now; empty when it is in force."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows whether this process lives and could work."""
    router = APIRouter(tags=["health"])

    @router.get("/livez", responses=gives(str, "It does.", media_type="text/plain"))
    async def alive() -> Response:
        """Whether the process answers."""
        return Response("ok\n", media_type="text/plain")

    @router.get("/readyz", responses=gives(Ready, "It could."))
    async def ready() -> Response:
        """Whether this control plane could do a leader's work now; if not, why."""
        reasons = control_plane.not_ready()
        if reasons:
            raise Problem(503, "; ".join(reasons), reasons=reasons)
        return answer(Ready(True, control_plane.policies.refused))

    @router.get("/metrics", responses=gives(str, "Metrics.", media_type="text/plain"))
    async def metrics() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(control_plane.metrics.render(), media_type=CONTENT_TYPE)

    return router
