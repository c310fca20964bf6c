"""Tables of an explanation of a routing decision."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.status.query_responses import ExplainResponse
from penstock.admission.queue_explanation import QueueExplanation
from penstock.planning.plan import ArcReason
from penstock.policy.geography import Location
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.routing.endpoint_selection import NEWCOMER_S
from penstock.routing.explain import ApplicableRule, ConsideredRegion, Explanation, RegionVerdict
from penstock.routing.reasons import ConsideredEndpoint, Refusal, Rejection
from penstock.routing.region_selection import RegionView

_COLOURS = {
    RegionVerdict.SERVES: "green",
    RegionVerdict.SPARE: "dim",
    RegionVerdict.REJECTED: "yellow",
    RegionVerdict.FORBIDDEN: "red",
    RegionVerdict.UNCONSIDERED: "dim",
}

_BY_BURST = ", by a burst endpoint"


def explanation_view(explanation: Explanation, notes: Iterable[str] = ()) -> RenderableType:
    """Return the request, the rules, every region, and the decision.

    Args:
        notes: the source and the limits of the explanation, printed below it.
    """
    parts: list[RenderableType] = [_heading(explanation)]
    parts += [_rule(rule) for rule in explanation.rules]
    parts.append(_regions(explanation))
    if explanation.endpoints:
        parts.append(_endpoints(explanation.endpoints))
    if explanation.job_store is not None:
        parts.append(Text(f"files and batches: {explanation.job_store}"))
    if explanation.result_cache is not None:
        parts.append(Text(f"result cache: {explanation.result_cache}, for deterministic requests"))
    if explanation.queue is not None:
        parts += _queue(explanation.queue)
    parts.append(_outcome(explanation))
    parts += [Text(note, "dim") for note in notes]
    return Group(*parts)


def present_lines(answer: ExplainResponse) -> list[str]:
    """Return how the same request would be routed now, beside the explanation of a past moment."""
    now = answer.present
    if now is None:
        return ["now: the policy in force does not have the region that received it"]
    of_plan = "no plan" if now.plan_generation is None else f"plan {now.plan_generation}"
    outcome = f"refused ({now.refusal.reason.value})" if now.refusal is not None else "served by nothing"
    if now.chosen is not None:
        outcome = f"served by {now.chosen.region} ({now.chosen.why.value})"
    lines = [f"now, by {of_plan} and policy {now.policy_digest[:12]}: {outcome}"]
    then, present = (_shares(explanation) for explanation in (answer.explanation, now))
    moved = [
        f"{region} {then.get(region, 0.0):.0%} -> {present.get(region, 0.0):.0%}"
        for region in sorted(then.keys() | present.keys())
        if then.get(region, 0.0) != present.get(region, 0.0)
    ]
    lines.append(f"planned shares then -> now: {', '.join(moved) or 'the same'}")
    return lines


def _shares(explanation: Explanation) -> dict[str, float]:
    return {region.region: region.arc.share for region in explanation.regions if region.arc is not None}


def _heading(explanation: Explanation) -> Text:
    asked = explanation.query
    sender = asked.tenant or "anonymous (no key)"
    if explanation.data_class is not None:
        sender += f", data class {explanation.data_class}"
    lines = [
        f"request    {asked.model} from {sender}; client in {_place(asked.location)}; lands on {asked.origin}",
        f"policy     {explanation.policy_digest[:12]}",
    ]
    if asked.stays_in:
        lines.append(
            f"session    has spilled to {asked.stays_in}, and stays there while {asked.stays_in} grants credits"
        )
    if explanation.home is not None:
        share = next((region.chance for region in explanation.regions if region.region == explanation.home), 0.0)
        lines.append(f"session    home {explanation.home}, which has {share:.0%} of the class")
    if asked.is_batch:
        lines[1] += "; the cheapest region with idle slots serves a batch request"
    elif explanation.plan_generation is not None:
        knows = "" if explanation.planned else "; it has no entry for this class yet, so the nearest serves"
        lines[1] += f", plan {explanation.plan_generation} (epoch {explanation.plan_epoch}){knows}"
    else:
        lines[1] += ", no plan: the nearest serves"
    if explanation.route is not None:
        route = explanation.route
        source = f" ({route.source})" if route.source else ""
        lines.insert(1, f"route      {route.name}{source}: {asked.method} {route.path}; {'; '.join(route.requires)}")
    if explanation.versions:
        shares = ", ".join(f"{version.model} {version.percent:g}%" for version in explanation.versions)
        lines.append(f"versions   {shares}; this is about requests that {asked.model} itself serves")
    if explanation.residency is not None:
        lines.append(f"residency  {explanation.residency}")
    return Text("\n".join(lines))


def _place(location: Location) -> str:
    if location.country is None:
        return "an unknown place"
    return location.country if location.subdivision is None else f"{location.country}-{location.subdivision}"


def _rule(rule: ApplicableRule) -> Text:
    does = []
    if rule.allows is not None:
        does.append(f"allows {', '.join(rule.allows) or 'nothing'}")
    if rule.denies:
        does.append(f"denies {', '.join(rule.denies)}")
    if rule.applies is None:
        does.append("would apply or not by the client's place, which is not known")
    where = f" ({rule.source})" if rule.source else ""
    return Text(f"rule       {rule.name}{where}: {'; '.join(does)}", "" if rule.applies else "yellow")


def _regions(explanation: Explanation) -> Table:
    numbers = ("chance", "plan", "round trip")
    table = table_of("region", "verdict", *numbers, "state", "because", title="Regions", right=numbers)
    for region in explanation.regions:
        table.add_row(
            region.region,
            Text(region.verdict.value, _COLOURS[region.verdict]),
            f"{region.chance:.0%}" if region.chance else "",
            _planned(region),
            f"{region.round_trip_ms:.0f} ms" if region.round_trip_ms is not None else "",
            _state(region.view),
            _because(region),
        )
    return table


def _planned(region: ConsideredRegion) -> str:
    if region.arc is not None:
        return f"{region.arc.share:.0%}"
    return f"fallback {region.fallback}" if region.fallback is not None else ""


def _state(view: RegionView | None) -> str:
    if view is None:
        return ""
    parts = [view.state.value, "ready" if view.ready else "not ready"]
    if view.weight < 1.0:
        parts.append(f"ramp {view.weight:.0%}")
    if view.expected_wait_s > 0.0:
        parts.append(f"wait {view.expected_wait_s:.2f} s")
    if view.credits:
        parts.append(f"{view.credits} credits")
    if view.burst_room:
        starts = f"a start of {view.burst_start_s:.0f} s" if view.burst_start_s else "no start"
        parts.append(f"burst endpoints for {view.burst_room} after {starts}")
    return ", ".join(parts)


def _because(region: ConsideredRegion) -> str:
    lines = []
    if region.why is not None:
        detail = f": {region.arc.detail}" if region.arc is not None and region.arc.detail else ""
        credit = "batch credit" if region.why is ArcReason.BATCH else "spill credit"
        uses = f", on a {credit}" if region.spends_credit else _BY_BURST if region.uses_burst else ""
        lines.append(region.why.value + detail + uses)
    elif region.verdict is RegionVerdict.SPARE:
        lines.append("could serve; nothing is sent there")
    if region.closed:
        lines.append("closed by an operator")
    lines += [_rejection(reason) for reason in region.reasons]
    if region.skew:
        lines.append(f"version skew: {region.skew}")
    return "\n".join(lines)


def _rejection(reason: Rejection) -> str:
    return f"{reason.reason.value}: {reason.detail}" if reason.detail else reason.reason.value


def _endpoints(endpoints: tuple[ConsideredEndpoint, ...]) -> Table:
    table = table_of("endpoint", "done in", "in flight", "because", title="Endpoints here")
    for endpoint in endpoints:
        table.add_row(endpoint.name, _done(endpoint.done_s), str(endpoint.in_flight), _of_endpoint(endpoint))
    return table


def _done(done_s: float | None) -> str:
    if done_s is None:
        return "-"
    return f"{done_s:.2f} s" if done_s < NEWCOMER_S else "after the others: it is new"


def _of_endpoint(endpoint: ConsideredEndpoint) -> str:
    if endpoint.reason is not None:
        return f"{endpoint.reason.value}: {endpoint.detail}" if endpoint.detail else endpoint.reason.value
    parts = ["holds the conversation, its beginning or the model"] if endpoint.holds else []
    parts += ["same zone"] if endpoint.near else []
    return ", ".join([*parts, endpoint.detail] if endpoint.detail else parts)


def _queue(queue: QueueExplanation) -> list[RenderableType]:
    numbers = ("priority", "weight", "share", "ahead", "requests", "longest wait", "work")
    table = table_of("tenant", *numbers, title=f"Admission queue: {queue.requests} requests", right=numbers)
    for each in queue.tenants:
        waits, work = f"{each.longest_wait_s:.1f} s", f"{each.work_s:.1f} s"
        priority = "batch" if each.priority == BATCH_PRIORITY else str(each.priority)
        share, ahead = f"{100 * each.share:.0f} %", f"{each.ahead_s:.1f} s"
        table.add_row(each.tenant, priority, f"{each.weight:g}", share, ahead, str(each.requests), waits, work)
    return [table, Text(f"next       {queue.why}")]


def _outcome(explanation: Explanation) -> Text:
    if explanation.chosen is not None:
        chosen = explanation.chosen
        how = _BY_BURST if chosen.uses_burst else ""
        return Text(f"→ {chosen.region} ({chosen.why.value}{how})", "bold green")
    if explanation.refusal is not None:
        return refusal_text(explanation.refusal)
    return Text("→ nothing", "bold red")


def refusal_text(refusal: Refusal) -> Text:
    """Return the text of a refusal, with the regions to try instead."""
    line = f"→ refused, {refusal.reason.value}: {refusal.detail}"
    if refusal.try_regions:
        line += f" ({', '.join(refusal.try_regions)})"
    return Text(line, "bold red")
