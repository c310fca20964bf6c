"""The checks of a run, each with its result and an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lab.demo.batches.batch_scene import NIGHT_REGION
from lab.demo.findings import Finding, finding, percent, residency, seconds
from lab.demo.images.image_outcomes import image_outcomes, requests_of
from lab.demo.measure import (
    FAILBACK_SHARE,
    due_in,
    early_requests,
    early_return_share,
    ended_with_region,
    failback_s,
    failover,
    home_share,
    served_ok,
    spill_end_s,
    surge_spills,
)
from lab.demo.records import Answer, EventKind, Outcome, Run
from lab.demo.scenario import ActName, PhaseName

STEADY_HOME_SHARE = 0.95
"""Minimum share (0-1) of steady demand that its home region must serve. It is below 1 because random arrivals sometimes
fill a small pool, and spillover is correct if the wait at home exceeds the round trip to another region."""

SURGE_OVER_SHARE = 0.8
"""Minimum share (0-1) of the surge region's demand served at home in the last third after the surge, without the worst
second. The limit is lower than STEADY_HOME_SHARE, since this period has about twenty requests, of which a
burst may spill two or three; recorded traces have bursts of ten requests in 0.1 s."""

REROUTED_WITHIN_S = 1.0
"""Maximum time (s) after the kill of a region at which an attempt may still go to the region."""

EARLY_RETURN_SHARE = 0.5
"""Maximum share (0-1) of its home demand that a returned region may serve in the first third of its ramp. A linear ramp
from 0 serves a sixth; the rest is tolerance, since few requests fall into this period."""


FLOOD_PER_MINUTE, FLOOD_BURST = 60.0, 10.0
"""The budget of the tier `trial` (lab/planet/tenants.yaml)."""

MAX_OVERSHOOT = 0.05
"""Maximum share (0-1) by which the fleet may exceed a budget."""

BATCHES = 2
"""Batches of the scene: one in a region that stays, one in the region that is killed."""

MAX_BATCH_RUNS = 2
"""Maximum number of engine runs of one request: the loss of a region costs one more."""

REVOKED_WITHIN_S = 1.0
"""Maximum time (s) from the revocation of a key to the end of its streams."""


def judge(run: Run) -> tuple[Finding, ...]:
    """Run every check, in report order."""
    return tuple(check(run) for check in _CHECKS)


def _residency(run: Run) -> Finding:
    seen = {sighting.id for sighting in run.sightings}
    answered_images = [job.request for job in run.images if job.request.outcome is Outcome.OK]
    unseen = sum(request.id not in seen for request in (*served_ok(run), *answered_images))
    return residency(run.sightings, unseen)


def _steady(run: Run) -> Finding:
    due = due_in(run.scenario.phase(PhaseName.STEADY))
    asked = [request for request in run.served if due(request)]
    unserved = [request for request in asked if request.outcome is not Outcome.OK]
    share = home_share(asked)
    holds = share is not None and share >= STEADY_HOME_SHARE and not unserved
    says = (
        f"{percent(share)} of {len(asked)} requests were served by the nearest permitted region "
        f"(at least {STEADY_HOME_SHARE:.0%} is required), {len(unserved)} were not served"
    )
    return finding("nearest permitted region", holds, len(asked), says, PhaseName.STEADY)


def _redirects(run: Run) -> Finding:
    sent_on = [request for request in run.served if any(a.answer is Answer.REDIRECTED for a in request.attempts)]
    lost = [request for request in sent_on if request.outcome is Outcome.REFUSED]
    says = (
        f"{len(sent_on)} requests arrived at an entry that residency forbids and were redirected; "
        f"{len(sent_on) - len(lost)} of them were not refused afterwards"
    )
    return finding("forbidden entries", not lost, len(sent_on), says)


def _surge(run: Run) -> Finding:
    spilt = surge_spills(run)
    outside = [request for request in spilt if request.server not in request.required]
    places = sorted({request.server for request in spilt})
    says = (
        f"{len(spilt)} requests of {run.scenario.surge_region} were served by other regions "
        f"({', '.join(places) or 'no region'}), {len(outside)} of them outside residency"
    )
    return finding("spillover", not outside, len(spilt), says, PhaseName.SURGE)


def _surge_end(run: Run) -> Finding:
    phase = run.scenario.phase(PhaseName.SURGE)
    from_s = phase.to_s - (phase.to_s - run.scenario.act_at_s(ActName.SURGE_ENDS)) / 3
    late = [
        request
        for request in run.served
        if request.home == run.scenario.surge_region and from_s <= request.due_s < phase.to_s
    ]
    away = Counter(int(request.due_s) for request in late if request.server != request.home)
    worst = {second for second, _ in away.most_common(1)}
    share, last_s = home_share(late), spill_end_s(run)
    calm = [request for request in late if int(request.due_s) not in worst and request.outcome is Outcome.OK]
    settled = home_share(calm)
    holds = settled is not None and settled >= SURGE_OVER_SHARE
    says = (
        f"last request spilled over {seconds(last_s)} after the surge ended; in the last third of the rest of the "
        f"phase, the home region served {percent(share)} of {len(late)} requests, "
        f"{percent(settled)} without the worst second"
    )
    return finding("end of spillover", holds, len(calm), says, PhaseName.SURGE)


def _rerouted(run: Run) -> Finding:
    measured = failover(run)
    last_s = measured.rerouted_s
    holds = measured.detected_s is not None and (last_s is None or last_s <= REROUTED_WITHIN_S)
    attempts = "no attempt" if last_s is None else f"last attempt {seconds(last_s)}"
    says = (
        f"detected {seconds(measured.detected_s)} after kill -9; {attempts} at {run.scenario.lost_region} "
        f"after kill -9 (limit {REROUTED_WITHIN_S:g} s); {measured.retried} requests were retried successfully, "
        f"{measured.elsewhere} requests of its clients were served elsewhere"
    )
    return finding("failover", holds, measured.elsewhere, says, PhaseName.REGION_LOSS)


def _nothing_lost(run: Run) -> Finding:
    measured = failover(run)
    says = (
        f"{measured.lost_not_started} requests failed before an engine started them; "
        f"{measured.broken_after_start} failed that had reached an engine of {run.scenario.lost_region}"
    )
    observed = len(run.served) if run.event(EventKind.REGION_KILLED) is not None else 0
    return finding("nothing lost that had not started", measured.lost_not_started == 0, observed, says)


def _streams_survive(run: Run) -> Finding:
    measured, lost = failover(run), run.scenario.lost_region
    says = (
        f"{measured.continued} streams from {lost} through other regions were completed, "
        f"{measured.not_continued} failed"
    )
    observed = measured.continued + measured.not_continued
    return finding("streams continue", measured.not_continued == 0, observed, says, PhaseName.REGION_LOSS)


def _failures_explained(run: Run) -> Finding:
    failed = [request for request in run.served if request.outcome is Outcome.FAILED]
    explained = ended_with_region(run)
    strange = [request for request in failed if request not in explained]
    says = (
        f"{len(failed)} of {len(run.served)} requests failed; {len(explained)} of them were served or accepted by the "
        "killed region"
    )
    if strange:
        says += f"; the first unexplained failure: {strange[0].detail or strange[0].status}"
    return finding("no unexplained failure", not strange, len(run.served), says)


def _failback(run: Run) -> Finding:
    took_s, early = failback_s(run), early_return_share(run)
    ramped = early is not None and early <= EARLY_RETURN_SHARE
    if took_s is None:
        says = f"{run.scenario.lost_region} did not regain {FAILBACK_SHARE:.0%} of its steady share in time"
    else:
        says = (
            f"{run.scenario.lost_region} regained {FAILBACK_SHARE:.0%} of its steady share {seconds(took_s)} after it "
            f"was ready, and served {percent(early)} in the first third of a ramp of {run.failback_ramp_s:g} s"
        )
    observed = early_requests(run)
    return finding("ramped failback", took_s is not None and ramped, observed, says, PhaseName.REGION_LOSS)


def _control_loss(run: Run) -> Finding:
    due = due_in(run.scenario.phase(PhaseName.CONTROL_LOSS))
    asked = [request for request in run.served if due(request)]
    unserved = [request for request in asked if request.outcome is not Outcome.OK]
    killed = {EventKind.LEADER_KILLED, EventKind.ETCD_KILLED, EventKind.REDIS_KILLED}
    missing = killed - {event.kind for event in run.events}
    after = [
        sum(event.at_s < request.due_s for request in asked) for event in run.events if event.kind in killed - missing
    ]
    says = (
        f"{len(unserved)} of {len(asked)} requests were not served during the loss of control plane, etcd and Redis; "
        f"{min(after, default=0)} were sent after the last of the three was killed"
    )
    if missing:
        says += f"; missing events: {', '.join(sorted(missing))}"
    observed = min(after, default=0)
    return finding("serving goes on", not unserved and not missing, observed, says, PhaseName.CONTROL_LOSS)


def _new_leader(run: Run) -> Finding:
    killed, leader = run.event(EventKind.LEADER_KILLED), run.event(EventKind.NEW_LEADER)
    took_s = leader.at_s - killed.at_s if killed is not None and leader is not None else None
    says = f"time until another control plane led after the leader was killed: {seconds(took_s)}"
    return finding("a new leader", took_s is not None, killed is not None, says, PhaseName.CONTROL_LOSS)


def _images(run: Run) -> Finding:
    found = image_outcomes(run)
    holds = not found.unanswered and not found.outside and not found.miscounted
    says = (
        f"{found.answered} of {found.jobs} image jobs were answered and {len(found.unanswered)} were lost; "
        f"{found.governed} were restricted to some regions, {found.outside} ran outside them; agents accounted "
        f"{found.accounted_megapixel_steps:.0f} of {found.megapixel_steps:.0f} megapixel steps"
    )
    if found.unanswered:
        says += f"; the first lost job: {requests_of(found.unanswered)}"
    elif found.miscounted:
        says += f"; the first wrongly accounted job: {requests_of(found.miscounted)}"
    return finding("image jobs", holds, min(found.answered, found.governed), says)


def _flood(run: Run) -> Finding:
    scene = run.tenants
    if scene is None:
        return finding("budget of a flood", False, 0, "the scene of tenants did not end", PhaseName.TENANTS)
    asked = scene.of("flood")
    served = sum(request.status == 200 for request in asked)
    refused = [request for request in asked if request.status == 429]
    named = [request for request in refused if "60 requests per minute" in request.detail]
    most = (FLOOD_BURST + FLOOD_PER_MINUTE / 60 * scene.flood_s) * (1.0 + MAX_OVERSHOOT)
    holds = FLOOD_BURST / 2 <= served <= most and len(named) == len(refused) == len(asked) - served
    says = (
        f"{served} of {len(asked)} requests in {scene.flood_s:g} s were served within a budget of "
        f"{FLOOD_PER_MINUTE:g} a minute and {FLOOD_BURST:g} at once, over all regions; {len(refused)} were refused, "
        f"{len(named)} with the name of the budget"
    )
    return finding("budget of a flood", holds, len(refused), says, PhaseName.TENANTS)


def _quiet(run: Run) -> Finding:
    asked = run.tenants.of("quiet") if run.tenants is not None else ()
    served = sorted(request.took_s for request in asked if request.status == 200)
    slowest = seconds(served[-1] if served else None)
    says = f"{len(served)} of {len(asked)} requests of a tenant beside the flood were served, the slowest in {slowest}"
    return finding("a quiet tenant", len(served) == len(asked), len(asked), says, PhaseName.TENANTS)


def _revoked_key(run: Run) -> Finding:
    scene = run.tenants
    revoked, ended = (scene.revoked_at_s, scene.stream_ended_at_s) if scene is not None else (None, None)
    took_s = ended - revoked if ended is not None and revoked is not None else None
    after = scene.status_after_revocation if scene is not None else 0
    says = f"the stream with the key ended {seconds(took_s)} after the revocation; then the key answers {after}"
    holds = took_s is not None and took_s <= REVOKED_WITHIN_S and after == 401
    return finding("a revoked key", holds, revoked is not None, says, PhaseName.TENANTS)


def _bill(run: Run) -> Finding:
    scene = run.tenants
    if scene is None:
        return finding("the bill", False, 0, "the scene of tenants did not end", PhaseName.TENANTS)
    ran = {request.id for request in scene.requests if request.status == 200}
    billed = Counter(record.id for record in scene.billed if record.outcome not in ("refused", "deferred"))
    wrong = [
        record.id
        for record in scene.billed
        if record.outcome == "ok" and record.output_tokens != scene.generated.get(record.id)
    ]
    missing, twice = ran - billed.keys(), [id for id, times in billed.items() if times > 1]
    tokens = sum(record.output_tokens for record in scene.billed)
    estimated = sum(record.is_estimated for record in scene.billed)
    says = (
        f"{sum(billed.values())} records of {len(ran)} requests of the scene with {tokens} tokens, {estimated} of them "
        f"estimated; {len(missing)} missing, {len(twice)} twice, {len(wrong)} other than the engines' witness"
    )
    invented = {record.id for record in scene.billed if record.outcome == "ok"} - ran
    holds = not missing and not twice and not wrong and not invented
    return finding("the bill", holds, len(ran), says, PhaseName.TENANTS)


def _batches(run: Run) -> Finding:
    counts, holds, lost, lines = [], bool(run.batches), 0, 0
    for batch in run.batches:
        written = Counter((*batch.output, *batch.errors))
        once = written == Counter(f"line-{number}" for number in range(batch.requests))
        extra = sum(runs - 1 for runs in batch.engine_runs)
        losses = int(batch.done_before_loss is not None)
        was_cut = batch.region != run.scenario.lost_region or 0 < (batch.done_before_loss or 0) < batch.requests
        most, least = max(batch.engine_runs, default=0), min(batch.engine_runs, default=0)
        ran = least >= 1 and most <= MAX_BATCH_RUNS and not batch.outside
        # Its region is the dearest, and others have idle slots.
        ran = ran and (batch.region != NIGHT_REGION or any(region != NIGHT_REGION for region in batch.ran_in))
        where = ", ".join(f"{count} in {region}" for region, count in sorted(batch.ran_in.items()))
        holds = holds and once and was_cut and ran and batch.status == "completed" and not batch.errors
        lost, lines = lost + losses, lines + len(batch.output)
        cut = f", {batch.done_before_loss} of them before its region was killed" if losses else ""
        counts.append(
            f"{batch.region}: {batch.status}, {len(written)} of {batch.requests} custom_ids in the results{cut}, "
            f"{sum(written.values()) - len(written)} twice, {len(batch.errors)} errors, {extra} extra engine runs "
            f"(at most {most - 1} of one request), {batch.outside} outside residency; runs: {where}"
        )
    says = "; ".join(counts) or "no batch ended"
    return finding("batches", holds and lost == 1 and len(run.batches) == BATCHES, lines, says)


def _no_unexpected_exit(run: Run) -> Finding:
    exits = [event for event in run.events if event.kind is EventKind.UNEXPECTED_EXIT]
    says = f"unexpected exits of {run.processes} processes: {'; '.join(event.text for event in exits) or 'none'}"
    return finding("processes", not exits, run.processes, says)


_CHECKS: tuple[Callable[[Run], Finding], ...] = (
    _residency,
    _redirects,
    _steady,
    _surge,
    _surge_end,
    _rerouted,
    _failback,
    _nothing_lost,
    _streams_survive,
    _failures_explained,
    _images,
    _flood,
    _quiet,
    _revoked_key,
    _bill,
    _batches,
    _new_leader,
    _control_loss,
    _no_unexpected_exit,
)
