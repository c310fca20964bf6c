"""An explanation as a person reads it in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from penstock.policy.geography import Location
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


def explanation_view(explanation: Explanation, notes: Iterable[str] = ()) -> RenderableType:
    """The request, the rules, every region, and what would be done.

    Args:
        notes: what the reader has to know of where the explanation comes from.
    """
    parts: list[RenderableType] = [_heading(explanation)]
    parts += [_rule(rule) for rule in explanation.rules]
    parts.append(_regions(explanation))
    if explanation.endpoints:
        parts.append(_endpoints(explanation.endpoints))
    parts.append(_outcome(explanation))
    parts += [Text(note, "dim") for note in notes]
    return Group(*parts)


def _heading(explanation: Explanation) -> Text:
    asked = explanation.query
    sender = asked.tenant or "nobody (no key)"
    if explanation.data_class is not None:
        sender += f", data class {explanation.data_class}"
    lines = [
        f"request    {asked.model} from {sender}; client in {_place(asked.location)}; lands on {asked.origin}",
        f"policy     {explanation.policy_digest[:12]}",
    ]
    if explanation.plan_generation is not None:
        knows = "" if explanation.planned else "; it has no entry for this class yet, so the nearest serves"
        lines[1] += f", plan {explanation.plan_generation} (epoch {explanation.plan_epoch}){knows}"
    else:
        lines[1] += ", no plan: the nearest serves"
    if explanation.versions:
        shares = ", ".join(f"{one.model} {one.percent:g}%" for one in explanation.versions)
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
    for one in explanation.regions:
        table.add_row(
            one.region,
            Text(one.verdict.value, _COLOURS[one.verdict]),
            f"{one.chance:.0%}" if one.chance else "",
            _planned(one),
            f"{one.round_trip_ms:.0f} ms" if one.round_trip_ms is not None else "",
            _state(one.view),
            _because(one),
        )
    return table


def _planned(one: ConsideredRegion) -> str:
    if one.arc is not None:
        return f"{one.arc.share:.0%}"
    return f"fallback {one.fallback}" if one.fallback is not None else ""


def _state(view: RegionView | None) -> str:
    if view is None:
        return ""
    told = [view.state.value, "ready" if view.ready else "not ready"]
    if view.weight < 1.0:
        told.append(f"ramp {view.weight:.0%}")
    if view.expected_wait_s > 0.0:
        told.append(f"wait {view.expected_wait_s:.2f} s")
    if view.credits:
        told.append(f"{view.credits} credits")
    return ", ".join(told)


def _because(one: ConsideredRegion) -> str:
    lines = []
    if one.why is not None:
        detail = f": {one.arc.detail}" if one.arc is not None and one.arc.detail else ""
        lines.append(one.why.value + detail + (", on a spill credit" if one.spends_credit else ""))
    elif one.verdict is RegionVerdict.SPARE:
        lines.append("could serve; nothing is sent there")
    if one.closed:
        lines.append("closed by an operator")
    lines += [_rejection(reason) for reason in one.reasons]
    return "\n".join(lines)


def _rejection(reason: Rejection) -> str:
    return f"{reason.reason.value}: {reason.detail}" if reason.detail else reason.reason.value


def _endpoints(endpoints: tuple[ConsideredEndpoint, ...]) -> Table:
    table = table_of("endpoint", "done in", "in flight", "because", title="Endpoints here")
    for one in endpoints:
        table.add_row(one.name, _done(one.done_s), str(one.in_flight), _of_endpoint(one))
    return table


def _done(done_s: float | None) -> str:
    if done_s is None:
        return "-"
    return f"{done_s:.2f} s" if done_s < NEWCOMER_S else "after the others: it is new"


def _of_endpoint(one: ConsideredEndpoint) -> str:
    if one.reason is not None:
        return one.reason.value
    told = ["holds the conversation, its beginning or the model"] if one.holds else []
    return ", ".join([*told, "same zone"] if one.near else told)


def _outcome(explanation: Explanation) -> Text:
    if explanation.chosen is not None:
        return Text(f"→ {explanation.chosen.region} ({explanation.chosen.why.value})", "bold green")
    if explanation.refusal is not None:
        return refusal_text(explanation.refusal)
    return Text("→ nothing", "bold red")


def refusal_text(refusal: Refusal) -> Text:
    """A refusal and where to go instead."""
    line = f"→ refused, {refusal.reason.value}: {refusal.detail}"
    if refusal.try_regions:
        line += f" ({', '.join(refusal.try_regions)})"
    return Text(line, "bold red")
