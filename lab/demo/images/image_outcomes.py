"""Measures the outcomes of the image jobs of a run."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

import msgspec

from lab.demo.records import EventKind, ImageJob, Outcome, Run
from lab.quantile import quantile

LONGEST_JOB_S = 10.0
"""Maximum duration (s) of an image job: a job due within this time before the death of its only region may be lost."""


class ImageOutcomes(msgspec.Struct, frozen=True):
    """Counts and latencies of the image jobs of a run."""

    jobs: int
    answered: int
    governed: int
    """Jobs that residency restricts to some of the regions."""
    unanswered: tuple[ImageJob, ...]
    """Unanswered jobs for which a permitted region was up."""
    outside: int
    """Jobs that reached an engine outside their permitted regions."""
    miscounted: tuple[ImageJob, ...]
    """Answered jobs whose accounted megapixel steps differ from the requested megapixel steps or are missing."""
    megapixel_steps: float
    """Requested megapixel steps of the answered jobs."""
    accounted_megapixel_steps: float
    e2e_p50_s: float | None
    e2e_p99_s: float | None


def image_outcomes(run: Run) -> ImageOutcomes:
    """Measure the image jobs of a run."""
    answered = [job for job in run.images if job.request.outcome is Outcome.OK]
    ids = {job.request.id for job in run.images}
    regions = max((len(job.request.required) for job in run.images), default=0)
    e2e_s = [job.request.e2e_s for job in answered if job.request.e2e_s is not None]
    return ImageOutcomes(
        jobs=len(run.images),
        answered=len(answered),
        governed=sum(len(job.request.required) < regions for job in run.images),
        unanswered=tuple(job for job in run.images if job.request.outcome is not Outcome.OK and _could_run(run, job)),
        outside=len({sighting.id for sighting in run.sightings if sighting.violates and sighting.id in ids}),
        miscounted=tuple(job for job in answered if not _is_accounted(run, job)),
        megapixel_steps=sum(job.megapixel_steps for job in answered),
        accounted_megapixel_steps=sum(job.accounted_megapixel_steps or 0.0 for job in answered),
        e2e_p50_s=quantile(e2e_s, 0.5),
        e2e_p99_s=quantile(e2e_s, 0.99),
    )


def requests_of(jobs: Sequence[ImageJob]) -> str:
    """Describe the first of `jobs` for a message."""
    request = jobs[0].request
    return f"{request.id} of {request.tenant} from {request.site}, {request.detail or request.status}"


def _could_run(run: Run, job: ImageJob) -> bool:
    """Whether a region that may run the job was up; only the kills of the scenario count."""
    killed, ready = run.event(EventKind.REGION_KILLED), run.event(EventKind.REGION_READY)
    if job.request.required != (run.scenario.lost_region,) or killed is None:
        return True
    until_s = run.scenario.duration_s if ready is None else ready.at_s + run.failback_ramp_s
    return not killed.at_s - LONGEST_JOB_S <= job.request.due_s < until_s


def _is_accounted(run: Run, job: ImageJob) -> bool:
    """Whether an agent logged the job's megapixel steps, or was killed and may have lost the log line."""
    if job.accounted_megapixel_steps is not None:
        return isclose(job.accounted_megapixel_steps, job.megapixel_steps, rel_tol=1e-6)
    killed, request = run.event(EventKind.REGION_KILLED), job.request
    return killed is not None and request.origin == run.scenario.lost_region and request.due_s < killed.at_s
