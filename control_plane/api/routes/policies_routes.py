"""/v1/policies: what became of revisions, what is kept, whether a bundle is good, apply and roll back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from control_plane.api.json_responses import answer
from control_plane.api.openapi import gives
from control_plane.api.pagination import USUAL_LIMIT, Cursor, Limit, paged
from control_plane.api.preconditions import IfMatch, IfNoneMatch, etag, is_known
from control_plane.api.problems import Problem
from control_plane.api.routes.rollouts_routes import Order, refusal, seen_rollout
from control_plane.audit.audit_log import ChangeRefused
from control_plane.auth.callers import Caller
from control_plane.auth.required_roles import Admin, Operator, Viewer, must_reach
from control_plane.daemon import ControlPlane
from control_plane.policy.bundle_errors import PolicyError, PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.source.judgement import Revision, RevisionPage
from control_plane.policy.tarball import read_tar
from control_plane.rollout.rollout_actions import NotKept, OrderRefused
from control_plane.rollout.rollout_records import Stored
from control_plane.rollout.rollout_resource import RolloutSummary, summary
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import SHOWN_DIGEST, Change, diff
from penstock.policy.provenance import Provenance
from penstock.rollout.state_machine import Rollout

MAX_ERRORS = 500
"""Errors of a bundle that are answered."""

TAR = "application/x-tar"

Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="The policy's digest.")]
QueryDigest = Annotated[
    str | None, Query(pattern="^[0-9a-f]{64}$", description="Digest; without it, the one in force.")
]

PutInForce = Callable[[Caller, Stored, str, Provenance | None, str], Awaitable[Rollout]]
"""An order that brings a kept policy, by its digest, for a reason."""


class PolicyShown(msgspec.Struct, frozen=True):
    """A policy that is kept."""

    digest: str
    in_force: bool
    """Whether most regions obey it."""
    revisions: tuple[Revision, ...]
    """Those of the last ones that had this content, newest first."""
    policy: Any
    """All that it says, compiled; of keys' digests only the beginning."""


class Validation(msgspec.Struct, frozen=True):
    """Is a bundle good?"""

    good: bool
    digest: str
    """Of the compiled policy; empty where it is not good."""
    errors: tuple[PolicyError, ...]
    """Everything that is wrong, by file and line."""
    changes: tuple[Change, ...]
    """What it says otherwise than the policy in force."""


class PolicyChanges(msgspec.Struct, frozen=True):
    """What two policies differ in."""

    before: str
    after: str
    changes: tuple[Change, ...]
    """By kind, name and field; empty where both mean the same."""


def routes(control_plane: ControlPlane) -> APIRouter:
    """Shows, judges and applies policies."""
    router = APIRouter(prefix="/v1/policies", tags=["policies"])
    orders = control_plane.orders
    at_work = asyncio.Lock()

    async def kept(digest: str) -> Policy:
        try:
            return await orders.policy(digest)
        except NotKept as error:
            raise refusal(error) from None

    async def ordered(put: PutInForce, caller: Caller, digest: str, body: Order, if_match: str | None) -> Response:
        must_reach(caller, None)
        seen = await seen_rollout(control_plane, if_match)
        every = await control_plane.revisions.newest_first()
        provenance = next((one.provenance for one in every if one.digest == digest), None)
        try:
            after = await put(caller, seen, digest, provenance, body.reason)
        except (OrderRefused, NotKept, ChangeRefused) as refused:
            raise refusal(refused) from None
        return answer(summary(after))

    @router.get("", responses=gives(RevisionPage, "A page of revisions."))
    async def page(caller: Viewer, cursor: Cursor = None, limit: Limit = USUAL_LIMIT) -> Response:
        """What became of the last revisions of the policy source: accepted, or refused with every error."""
        every = await control_plane.revisions.newest_first()
        some = paged(every, lambda one: f"{one.number:011d}", cursor, limit, newest_first=True)
        return answer(RevisionPage(some.items, some.next_cursor))

    @router.get("/diff", responses=gives(PolicyChanges, "The differences."))
    async def changes(caller: Viewer, before: QueryDigest = None, after: QueryDigest = None) -> Response:
        """What one policy says otherwise than another, by kind, name and field."""
        pair = [await kept(one) if one is not None else _in_force(control_plane) for one in (before, after)]
        return answer(PolicyChanges(pair[0].digest(), pair[1].digest(), diff(*pair)))

    @router.post(
        "/validate",
        responses=gives(Validation, "Whether it is good."),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "title": "Files",
                            "description": "Text by file name.",
                            "additionalProperties": {"type": "string"},
                        }
                    },
                    TAR: {"schema": {"type": "string", "format": "binary"}},
                },
            }
        },
    )
    async def validate(request: Request, caller: Viewer) -> Response:
        """Is a bundle good? Nothing is kept of it, and nothing changes.

        Send its files as a JSON object of texts by name, or its folder as an uncompressed tar archive.
        """
        body, kind = await request.body(), request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in (TAR, "application/json"):
            raise Problem(415, f"send the bundle as application/json or {TAR}")
        current = control_plane.policy
        # One at a time, so that nobody keeps the machine busy with it, and none waits with its bundle in memory.
        if at_work.locked():
            raise Problem(429, "another bundle is being judged", {"retry-after": "2"})
        async with at_work:
            return answer(await asyncio.to_thread(_validated, body, kind, current))

    @router.get("/{digest}", responses=gives(PolicyShown, "The policy.", etag=True))
    async def one(caller: Viewer, digest: Digest, if_none_match: IfNoneMatch = None) -> Response:
        """A policy that is kept: those in force, and about the last twenty."""
        policy = await kept(digest)
        current = control_plane.policy
        in_force = current is not None and current.digest() == digest
        tag = f"{digest}-{'in-force' if in_force else 'kept'}"
        if is_known(if_none_match, tag):
            return Response(status_code=304, headers={"etag": etag(tag)})
        every = await control_plane.revisions.newest_first()
        told = tuple(revision for revision in every if revision.digest == digest)
        return answer(PolicyShown(digest, in_force, told, _without_keys(policy)), headers={"etag": etag(tag)})

    @router.post("/{digest}/apply", responses=gives(RolloutSummary, "Its rollout has begun."))
    async def apply(caller: Admin, digest: Digest, body: Order, if_match: IfMatch = None) -> Response:
        """Roll a kept policy out, by the rules of the one in force, as if the source had it now.

        What the source has does not undo it, until it has something new. If-Match is the ETag of the current rollout.
        """
        return await ordered(orders.apply, caller, digest, body, if_match)

    @router.post("/{digest}/rollback", responses=gives(RolloutSummary, "Every region is told to obey it."))
    async def rollback(caller: Operator, digest: Digest, body: Order, if_match: IfMatch = None) -> Response:
        """Go back to a kept policy that every region obeyed once, everywhere and at once; a rollout under way ends.

        What the source has does not undo it, until it has something new. If-Match is the ETag of the current rollout.
        """
        return await ordered(orders.restore, caller, digest, body, if_match)

    return router


def _in_force(control_plane: ControlPlane) -> Policy:
    policy = control_plane.policy
    if policy is None:
        raise Problem(503, "no policy is in force yet", {"retry-after": "2"})
    return policy


def _validated(body: bytes, kind: str, current: Policy | None) -> Validation:
    try:
        policy = compile_bundle(read_tar(body) if kind == TAR else _files(body))
    except PolicyRefused as refused:
        return Validation(False, "", refused.errors[:MAX_ERRORS], ())
    return Validation(True, policy.digest(), (), diff(current, policy) if current is not None else ())


def _files(body: bytes) -> dict[str, str]:
    try:
        return msgspec.json.decode(body, type=dict[str, str])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Problem(422, f"not a JSON object of texts by file name: {error}") from None


def _without_keys(policy: Policy) -> Any:
    plain = msgspec.json.decode(msgspec.json.encode(policy, order="deterministic"))
    for tenant in plain["tenants"].values():
        tenant["key_digests"] = [digest[:SHOWN_DIGEST] for digest in tenant["key_digests"]]
    return plain
