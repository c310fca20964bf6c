"""POST /v1/policies/webhook: the policy repository has changed. Signed by its host, so no caller is asked for."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from control_plane.policy.source.policy_webhook import PolicyWebhook


def routes(webhook: PolicyWebhook) -> APIRouter:
    """Takes deliveries."""
    router = APIRouter(tags=["policies"])

    @router.post(
        "/v1/policies/webhook",
        status_code=204,
        response_class=Response,
        responses={204: {"description": "Genuine: the repository is looked at."}},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": {}}}}},
    )
    async def webhook_delivery(
        request: Request,
        x_hub_signature_256: Annotated[
            str | None,
            Header(max_length=256, description="`sha256=` and the HMAC of the body: GitHub, Gitea, Forgejo."),
        ] = None,
        x_gitlab_token: Annotated[str | None, Header(max_length=4096, description="The secret itself: GitLab.")] = None,
    ) -> Response:
        """Look at the policy repository at once.

        What is delivered is not read; what is signed is.
        """
        address = request.client.host if request.client is not None else ""
        await webhook.receive(address, x_hub_signature_256, x_gitlab_token, request.stream())
        return Response(status_code=204)

    return router
