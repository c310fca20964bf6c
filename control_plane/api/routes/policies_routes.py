"""`/v1/policies`: revisions of the policy source, stored policies, validation of bundles, apply and roll back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from pydantic import StrictBool

from adapters.access.callers import Caller
from control_plane.api.evaluation_response import evaluation_response
from control_plane.api.json_bodies import MAX_BODY, JsonBody
from control_plane.api.openapi import returns
from control_plane.api.pagination import DEFAULT_LIMIT, Cursor, Limit, paginate
from control_plane.api.preconditions import IfMatch, IfNoneMatch, etag, is_known
from control_plane.api.responses import Problem, json_response, large_response
from control_plane.api.routes.rollouts.rollouts_routes import ActionBody, ActionRequest, action_problem, current_rollout
from control_plane.audit.audit_log import ChangeRefused
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.evaluation.evaluation_jobs import Validation, ValidationJob
from control_plane.evaluation.evaluator import Evaluator
from control_plane.page import Page
from control_plane.policy.bundle_limits import MAX_BUNDLE_BYTES
from control_plane.policy.source.revision import Revision
from control_plane.policy.source.revision_store import RevisionStore
from control_plane.rollout.rollout_actions import ActionRefused, PolicyNotStored, RolloutActions
from control_plane.rollout.rollout_resource import RolloutSummary, summary
from control_plane.rollout.rollout_store import StoredRollout
from control_plane.status.fleet_view import FleetView
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import SHOWN_DIGEST
from penstock.policy.provenance import Provenance
from penstock.rollout.policy_rollout import Rollout

TAR = "application/x-tar"

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Digest of the policy.")]


class ApplyRequest(ActionRequest):
    """Body of the application of a policy."""

    allow_removal: StrictBool = False
    """Whether the policy may remove documents that a bundle may not remove without an AcceptedRemoval."""


ApplyBody = Annotated[ApplyRequest, Depends(JsonBody(ApplyRequest).read)]

PolicyAction = Callable[[Caller, StoredRollout, str, Provenance | None, str], Awaitable[Rollout]]
"""An action that puts a stored policy in force: apply or roll back."""


class PolicyView(msgspec.Struct, frozen=True):
    """A stored policy."""

    digest: str
    in_force: bool
    """Whether most regions run the policy."""
    revisions: tuple[Revision, ...]
    """The recent revisions with this content, newest first."""
    policy: Any
    """The compiled policy. Digests of API keys are shortened."""


def routes(actions: RolloutActions, revisions: RevisionStore, view: FleetView, evaluator: Evaluator) -> APIRouter:
    """Return the router of policies."""
    router = APIRouter(prefix="/v1/policies", tags=["policies"])

    async def stored_policy(digest: str) -> Policy:
        try:
            return await actions.policy(digest)
        except PolicyNotStored as error:
            raise action_problem(error) from None

    async def put_in_force(
        action: PolicyAction, caller: Caller, digest: str, body: ActionRequest, if_match: str | None
    ) -> Response:
        must_reach(caller, None)
        current = await current_rollout(actions, if_match)
        every = await revisions.newest_first()
        provenance = next((revision.provenance for revision in every if revision.digest == digest), None)
        try:
            after = await action(caller, current, digest, provenance, body.reason)
        except (ActionRefused, PolicyNotStored, ChangeRefused) as refused:
            raise action_problem(refused) from None
        return json_response(summary(after))

    @router.get("", responses=returns(Page[Revision], "A page of revisions."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = DEFAULT_LIMIT) -> Response:
        """List the last revisions of the policy source: accepted, or refused with all errors."""
        every = await revisions.newest_first()
        found = paginate(every, lambda revision: f"{revision.number:011d}", cursor, limit, newest_first=True)
        return json_response(found)

    @router.post(
        "/validate",
        responses=returns(Validation, "The result."),
        openapi_extra={
            MAX_BODY: MAX_BUNDLE_BYTES,
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "title": "Files",
                            "description": "File contents by file name.",
                            "additionalProperties": {"type": "string"},
                        }
                    },
                    TAR: {"schema": {"type": "string", "format": "binary"}},
                },
            },
        },
    )
    async def validate(request: Request, caller: Viewer) -> Response:
        """Validate a bundle without storing it.

        Send the files as a JSON object of contents by file name, or the folder as an uncompressed tar archive. A caller
        has one evaluation at a time.
        """
        body, kind = await request.body(), request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (TAR, "application/json"):
            raise Problem(415, f"send the bundle as application/json or {TAR}")
        return await evaluation_response(evaluator, caller.name, ValidationJob(body, kind == TAR, view.policy))

    @router.get("/{digest}", responses=returns(PolicyView, "The policy.", etag=True))
    async def policy(caller: Viewer, digest: Digest, if_none_match: IfNoneMatch = None) -> Response:
        """Get a stored policy: a policy in force, or one of about the last twenty policies."""
        found = await stored_policy(digest)
        current = view.policy
        in_force = current is not None and current.digest() == digest
        tag = f"{digest}-{'in-force' if in_force else 'stored'}"
        if is_known(if_none_match, tag):
            return Response(status_code=304, headers={"etag": etag(tag)})
        same = tuple(revision for revision in await revisions.newest_first() if revision.digest == digest)
        response = await large_response(lambda: PolicyView(digest, in_force, same, _without_keys(found)))
        response.headers["etag"] = etag(tag)
        return response

    @router.post("/{digest}/apply", responses=returns(RolloutSummary, "The rollout has started."))
    async def apply(caller: Admin, digest: Digest, body: ApplyBody, if_match: IfMatch = None) -> Response:
        """Start the rollout of a stored policy, as if it were the policy source's newest revision.

        The rollout follows the rules of the policy in force. The policy is not replaced until the source has a new
        revision. A policy that would remove residency rules, data classes, or many tenants, regions, models or routes
        of the stable policy is refused without `allow_removal`.
        If-Match is the ETag of the current rollout.
        """
        action = partial(actions.apply, allow_removal=body.allow_removal)
        return await put_in_force(action, caller, digest, body, if_match)

    @router.post("/{digest}/rollback", responses=returns(RolloutSummary, "The policy is sent to every region."))
    async def rollback(caller: Operator, digest: Digest, body: ActionBody, if_match: IfMatch = None) -> Response:
        """Return every region at once to a stored policy that the whole fleet has run before.

        This ends the current rollout. The policy is not replaced until the source has a new revision. If-Match is the
        ETag of the current rollout.
        """
        return await put_in_force(actions.restore, caller, digest, body, if_match)

    return router


def _without_keys(policy: Policy) -> Any:
    plain = msgspec.json.decode(msgspec.json.encode(policy, order="deterministic"))
    for tenant in plain["tenants"].values():
        tenant["key_digests"] = [digest[:SHOWN_DIGEST] for digest in tenant["key_digests"]]
    return plain
