"""Builds and writes report.json: all measurements of one run and their definitions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from lab.demo.findings import Finding
from lab.demo.images.image_outcomes import image_outcomes
from lab.demo.measure import (
    Kind,
    early_return_share,
    ended_with_region,
    failback_s,
    failover,
    home_share,
    kind_of,
    latency_ms,
    served_ok,
    spill_end_s,
    steady_share,
    surge_spills,
    who_served_whom,
)
from lab.demo.records import Answer, BatchScene, Outcome, Run, Served
from lab.demo.scenario import Phase, PhaseName
from lab.quantile import quantile

DEFINITIONS = {
    "home": "the region nearest to the client's entry, of the regions that may process the request",
    "ttft, e2e": "time from the scheduled start of the request to the first and the last token at the client",
    "spillover": "answered requests that a region other than home served while home was up",
    "failover.detected_s": "time from SIGKILL until a surviving agent first reported the region as failed",
    "failover.rerouted_s": "time from SIGKILL until the last failed attempt of a client or agent at the region",
    "failover.streams_continued": "streams from the killed region through other regions that were completed",
    "failover.lost_not_started": "requests of the whole run that failed for the client and that no engine started",
    "failback.seconds": "time from readiness of the region until it serves 90 % of its steady share for 3 s",
    "images": "jobs of Automatic1111's txt2img; except for residency, all other counts exclude them; accounted "
    "megapixel steps are the work in the agents' access logs divided by the policy's cost of a megapixel step",
    "batches.extra_engine_runs": "arrivals at engines beyond one for each line of the output; chats exclude batches",
    "residency.checked": "requests that reached an engine; compared with the permitted regions in the lab's own table",
}


MAX_NOT_OK = 50
"""Maximum number of unanswered requests that the report lists individually."""


class Setting(msgspec.Struct, frozen=True):
    """The inputs and the environment of a run, for the report."""

    made_at: str
    """ISO 8601, UTC."""
    workload: str
    """Source of arrivals and lengths, and the transformations applied to them."""
    geography: str
    """Source of the locations of clients."""
    network: str
    """Source of the round-trip times."""
    regions: tuple[dict[str, Any], ...]
    """Each region: name, city, latitude_deg, longitude_deg, agents, engines."""
    sites: tuple[dict[str, Any], ...]
    """Each client site: name, country, latitude_deg, longitude_deg, and its other fields."""
    environment: dict[str, Any]


def build_report(run: Run, checks: Sequence[Finding], setting: Setting) -> dict[str, Any]:
    """Return the content of report.json; `passed` determines the exit code."""
    measured = failover(run)
    outcomes = Counter(request.outcome for request in run.served)
    control = run.scenario.phase(PhaseName.CONTROL_LOSS)
    kinds = Counter(kind_of(run, request) for request in served_ok(run))
    took_s = failback_s(run)
    return {
        "passed": all(check.passed for check in checks),
        "made_at": setting.made_at,
        "requests": {
            "total": len(run.served),
            "ok": outcomes[Outcome.OK],
            "failed": outcomes[Outcome.FAILED],
            "refused": outcomes[Outcome.REFUSED],
            "redirected": sum(any(a.answer is Answer.REDIRECTED for a in request.attempts) for request in run.served),
            "unanswered": unanswered(run),
            "not_ok": _not_ok(run),
        },
        "residency": {
            "checked": len(run.sightings),
            "bound_to_some_regions": sum(len(s.required) < len(setting.regions) for s in run.sightings),
            "violations": sum(sighting.violates for sighting in run.sightings),
        },
        "surge_region": run.scenario.surge_region,
        "spillover": {
            "requests": kinds[Kind.SPILLOVER],
            "in_surge": len(surge_spills(run)),
            "in_surge_by_server": dict(Counter(request.server for request in surge_spills(run))),
            "seconds_after_surge": _rounded(spill_end_s(run)),
        },
        "failover": {
            "region": run.scenario.lost_region,
            "detected_s": _rounded(measured.detected_s),
            "detected_by_all_s": _rounded(measured.all_detected_s),
            "rerouted_s": _rounded(measured.rerouted_s),
            "first_elsewhere_s": _rounded(measured.first_elsewhere_s),
            "requests": kinds[Kind.FAILOVER],
            "retried_elsewhere": measured.retried,
            "broken_after_start": measured.broken_after_start,
            "streams_continued": measured.continued,
            "streams_not_continued": measured.not_continued,
            "lost_not_started": measured.lost_not_started,
        },
        "failback": {
            "seconds": _rounded(took_s),
            "ramp_s": run.failback_ramp_s,
            "steady_share": _rounded(steady_share(run)),
            "share_in_first_third_of_ramp": _rounded(early_return_share(run)),
        },
        "control_plane_loss": {
            "requests": sum(control.covers(request.due_s) for request in run.served),
            "failed_requests": sum(
                control.covers(request.due_s) and request.outcome is Outcome.FAILED for request in run.served
            ),
            "refused_requests": sum(
                control.covers(request.due_s) and request.outcome is Outcome.REFUSED for request in run.served
            ),
        },
        "images": _images(run),
        "batches": [_batch(batch) for batch in run.batches],
        "latency": _latency(run),
        "phases": [_phase(run, phase) for phase in run.scenario.phases],
        "who_served_whom": who_served_whom(run.served),
        "checks": [msgspec.to_builtins(check) for check in checks],
        "events": [msgspec.to_builtins(event) for event in run.events],
        "workload": setting.workload,
        "geography": setting.geography,
        "network": setting.network,
        "regions": list(setting.regions),
        "sites": list(setting.sites),
        "environment": setting.environment,
        "definitions": DEFINITIONS,
    }


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write report.json."""
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def unanswered(run: Run) -> list[str]:
    """Return for each reason how many chats were not answered because of it, and what is promised about them."""
    lost = {request.id for request in ended_with_region(run)}
    region = run.scenario.lost_region
    found = Counter(
        f"had reached {region} when it was killed, and were not continued elsewhere"
        if request.id in lost
        else f"got a refusal ({request.detail or request.status}), which is an answer that names its reason"
        if request.outcome is Outcome.REFUSED
        else f"failed ({request.detail or request.status})"
        for request in run.served
        if request.outcome is not Outcome.OK
    )
    return [f"{number} of {len(run.served)} chats {reason}" for reason, number in found.most_common()]


def _not_ok(run: Run) -> list[dict[str, Any]]:
    """Return up to MAX_NOT_OK unanswered requests, each with the regions whose engines received it."""
    seen: dict[str, list[str]] = {}
    for sighting in run.sightings:
        seen.setdefault(sighting.id, []).append(sighting.region)
    return [
        {
            "id": request.id,
            "due_s": _rounded(request.due_s),
            "home": request.home,
            "outcome": request.outcome,
            "status": request.status,
            "detail": request.detail,
            "attempts": [f"{attempt.at_s:.2f} s {attempt.region} {attempt.answer}" for attempt in request.attempts],
            "seen_by_engines_in": seen.get(request.id, []),
            "started": request.id in run.started,
        }
        for request in run.served
        if request.outcome is not Outcome.OK
    ][:MAX_NOT_OK]


def _phase(run: Run, phase: Phase) -> dict[str, Any]:
    asked = [request for request in run.served if phase.covers(request.due_s)]
    ok = [request for request in asked if request.outcome is Outcome.OK]
    ttft = [request.ttft_s * 1000 for request in ok if request.ttft_s is not None]
    return {
        "name": phase.name,
        "title": phase.title,
        "from_s": round(phase.from_s, 3),
        "to_s": round(phase.to_s, 3),
        "requests": len(asked),
        "ok": len(ok),
        "failed": sum(request.outcome is Outcome.FAILED for request in asked),
        "refused": sum(request.outcome is Outcome.REFUSED for request in asked),
        "served_at_home": _rounded(home_share(asked)),
        "kinds": dict(Counter(kind_of(run, request).value for request in ok)),
        "ttft_p50_ms": _rounded(quantile(ttft, 0.5), 1),
        "ttft_p99_ms": _rounded(quantile(ttft, 0.99), 1),
        "who_served_whom": who_served_whom(asked),
    }


def _images(run: Run) -> dict[str, Any]:
    found = image_outcomes(run)
    return {
        "total": found.jobs,
        "ok": found.answered,
        "bound_to_some_regions": found.governed,
        "lost": [job.request.id for job in found.unanswered],
        "outside_residency": found.outside,
        "megapixel_steps": _rounded(found.megapixel_steps),
        "megapixel_steps_accounted": _rounded(found.accounted_megapixel_steps),
        "e2e_p50_s": _rounded(found.e2e_p50_s),
        "e2e_p99_s": _rounded(found.e2e_p99_s),
        "who_served_whom": who_served_whom(job.request for job in run.images),
    }


def _batch(batch: BatchScene) -> dict[str, Any]:
    return {
        "region": batch.region,
        "requests": batch.requests,
        "status": batch.status,
        "created_s": _rounded(batch.created_at_s),
        "ended_s": _rounded(batch.ended_at_s),
        "output_lines": len(batch.output),
        "error_lines": len(batch.errors),
        "distinct_custom_ids": len({*batch.output, *batch.errors}),
        "completed_before_loss": batch.done_before_loss,
        "extra_engine_runs": sum(runs - 1 for runs in batch.engine_runs),
        "outside_residency": batch.outside,
        "engine_runs_by_region": batch.ran_in,
    }


def _latency(run: Run) -> dict[str, dict[str, float | None]]:
    groups: dict[str, list[Served]] = {}
    for request in served_ok(run):
        groups.setdefault(request.home, []).append(request)
    return {region: {"requests": len(group), **latency_ms(group)} for region, group in sorted(groups.items())}


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
