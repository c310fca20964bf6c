"""`POST /v1/policies/webhook`: webhook of the policy repository's host. Signed, so no caller is required."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from control_plane.api.json_bodies import MAX_BODY
from control_plane.policy.source.policy_webhook import PolicyWebhook

MAX_DELIVERY_BYTES = 4 * 1024 * 1024
"""Maximum size (bytes) of a delivery, which may list many commits. Deliveries are not held in memory."""


def routes(webhook: PolicyWebhook) -> APIRouter:
    """Return the router of the webhook."""
    router = APIRouter(tags=["policies"])

    @router.post(
        "/v1/policies/webhook",
        status_code=204,
        response_class=Response,
        responses={204: {"description": "The signature is valid; the repository is polled."}},
        openapi_extra={
            MAX_BODY: MAX_DELIVERY_BYTES,
            "requestBody": {"required": True, "content": {"application/json": {"schema": {}}}},
        },
    )
    async def webhook_delivery(
        request: Request,
        x_hub_signature_256: Annotated[
            str | None,
            Header(max_length=256, description="`sha256=` and the HMAC of the body: GitHub, Gitea, Forgejo."),
        ] = None,
        x_gitlab_token: Annotated[str | None, Header(max_length=4096, description="The secret itself: GitLab.")] = None,
    ) -> Response:
        """Poll the policy repository at once.

        Only the signature of the delivery is used; its content is ignored.
        """
        address = request.client.host if request.client is not None else ""
        await webhook.receive(address, x_hub_signature_256, x_gitlab_token, request.stream())
        return Response(status_code=204)

    return router
