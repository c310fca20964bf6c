"""The response to a request that is evaluated in a separate process."""

from __future__ import annotations

from fastapi import Response

from control_plane.api.responses import JSON, Problem
from control_plane.evaluation.evaluation_jobs import Job
from control_plane.evaluation.evaluator import Busy, EvaluationFailed, Evaluator

RETRY_S = 5
"""Retry-After (s) while too many evaluations are running."""


async def evaluation_response(evaluator: Evaluator, caller: str, job: Job) -> Response:
    """Return the result of a job.

    Raises:
        Problem: 429, too many evaluations are running; 422, the job is invalid, or too large to be evaluated.
    """
    try:
        reply = await evaluator.evaluate(caller, job)
    except Busy as busy:
        raise Problem(429, str(busy), {"retry-after": str(RETRY_S)}) from None
    except EvaluationFailed as failed:
        detail = f"{failed}; make the bundle smaller, or use `penstock policy verify` where the files are"
        raise Problem(422, detail) from None
    refusal = reply.refusal
    if refusal is not None:
        members = {"errors": refusal.errors} if refusal.errors else {}
        raise Problem(refusal.status, refusal.detail, None, **members)
    return Response(reply.response, media_type=JSON)
