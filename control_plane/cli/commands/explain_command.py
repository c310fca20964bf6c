"""`penstock explain`: why a request goes where it goes, by a control plane's knowledge or by a bundle alone."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated

import typer

from control_plane.cli.access_record import AccessRecord, BadRecord, read_record
from control_plane.cli.agent_client import fetch_explanation
from control_plane.cli.api_client import ApiClient
from control_plane.cli.bundle_arguments import compiled
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import UsageFault, exit_on_error
from control_plane.cli.explain_view import explanation_view
from control_plane.cli.output import Output, OutputOption, print_json, print_view
from control_plane.policy.bundle_errors import suggest
from control_plane.status.explain_response import Explained
from penstock.health.region_health import RegionState
from penstock.policy.geography import Location, country_error
from penstock.policy.policy import Policy
from penstock.routing.explain import ExplainQuery, Explanation, tenant_by_key
from penstock.routing.explain import explain as explained
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionView

OFFLINE = "offline: residency and distance alone; every region is taken to be well, and no plan is known"


@with_fleet_options
def explain(
    fleet: FleetOptions,
    origin: Annotated[str | None, typer.Option(help="Region that the request lands on.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Model that it asks for.", show_default=False)] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose it is; without tenant and key it carries none.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="File with its API key, instead of --tenant; only its SHA-256 is sent.")
    ] = None,
    country: Annotated[str | None, typer.Option(help="Country of its client, such as DE.")] = None,
    subdivision: Annotated[str | None, typer.Option(help="Its subdivision, such as BY.")] = None,
    ip: Annotated[str | None, typer.Option(help="Address of its client, to look up instead.")] = None,
    tried: Annotated[
        list[str] | None, typer.Option(help="A region that did not start it, as region=reason; may be repeated.")
    ] = None,
    overflow: Annotated[bool, typer.Option("--overflow", help="Its origin is full.")] = False,
    record: Annotated[
        str | None, typer.Option(help="A line of an agent's access log, - for one from stdin, instead of all these.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option(help="Ask this agent, as region/name: it knows waits, credits and endpoints.")
    ] = None,
    session: Annotated[str | None, typer.Option(help="Conversation that it names; agents alone know of them.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Explain offline, by this bundle alone: a folder, or REPOSITORY@REF:FOLDER.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain where a request would run: each region, kept or rejected by which rule of which file and line."""
    with exit_on_error("explain"):
        logged = _record(record) if record is not None else None
        if logged is not None:
            origin, model = origin or logged.origin, model or logged.model
            tenant = tenant or logged.tenant
            country, subdivision = country or logged.country or None, subdivision or logged.subdivision or None
        if agent is not None:
            origin = _same(origin, agent.partition("/")[0])
        if not origin or model is None:
            raise UsageFault("give --origin and --model")
        key_digest = _digest(key_file) if key_file is not None else None
        _check(tenant, key_digest, country, session, agent)
        asked = ExplainQuery(origin, model, tenant, Location(country, subdivision), _tried(tried or []), overflow)
        if policy is not None:
            if ip is not None or agent is not None:
                raise UsageFault("--ip and --agent need a fleet; offline give --country")
            told, notes = _offline(policy, asked, key_digest), [OFFLINE]
        else:
            with fleet.connect() as api:
                if agent is None:
                    told, notes = _online(api, asked, key_digest, ip)
                else:
                    told, notes = _by_agent(api, agent, asked, key_digest, ip, session)
    if output is Output.JSON:
        print_json(told)
        return
    if logged is not None:
        notes = [f"{logged}; explained as things are now, not as they were then", *notes]
    print_view(explanation_view(told, notes))


def _check(
    tenant: str | None, key_digest: str | None, country: str | None, session: str | None, agent: str | None
) -> None:
    """Of what is given beside each other.

    Raises:
        UsageFault: it contradicts itself, or nobody could answer it.
    """
    if key_digest is not None and tenant is not None:
        raise UsageFault("--tenant and --key-file both say whose it is; give one of them")
    if session is not None and agent is None:
        raise UsageFault("--session is known to agents alone; give --agent")
    if country is not None and (flaw := country_error(country)) is not None:
        raise UsageFault(f"--country: {flaw}")


def _online(
    api: ApiClient, asked: ExplainQuery, key_digest: str | None, ip: str | None
) -> tuple[Explanation, list[str]]:
    body = {
        "origin": asked.origin,
        "model": asked.model,
        "tenant": asked.tenant,
        "key_digest": key_digest,
        "ip": ip,
        "country": asked.location.country,
        "subdivision": asked.location.subdivision,
        "tried": asked.tried,
        "overflow": asked.overflow,
    }
    answer: Explained = api.request("POST", "/v1/explain", body=body).decoded(Explained)
    notes = [f"as {answer.seen_by} knows it; agents hold credits, waits and endpoints of their own"]
    if answer.provenance is not None:
        notes.append(f"policy from commit {answer.provenance}")
    if not answer.leading:
        notes.append(f"{answer.seen_by} does not lead, so it knows nothing of the regions' health")
    return answer.explanation, notes


def _by_agent(
    api: ApiClient, name: str, asked: ExplainQuery, key_digest: str | None, ip: str | None, session: str | None
) -> tuple[Explanation, list[str]]:
    agents = {f"{one.region}/{one.name}": one.admin_url for one in api.status().agents if one.admin_url is not None}
    if name not in agents:
        raise UsageFault(f"there is no agent {name!r}; {suggest(name, agents, '`penstock status` shows regions')}")
    query: dict[str, str | list[str] | None] = {
        "model": asked.model,
        "tenant": asked.tenant,
        "key_digest": key_digest,
        "country": asked.location.country,
        "subdivision": asked.location.subdivision,
        "ip": ip,
        "session": session,
        "overflow": "true" if asked.overflow else None,
        "tried": [f"{region}:{reason.value}" for region, reason in asked.tried.items()],
    }
    return fetch_explanation(agents[name], query), [f"as agent {name} knows it now"]


def _offline(bundle: str, asked: ExplainQuery, key_digest: str | None) -> Explanation:
    policy = compiled(bundle, "explain")
    for name in (asked.origin, *asked.tried):
        _known(policy, name)
    if key_digest is not None:
        tenant = tenant_by_key(policy, key_digest)
        if tenant is None:
            raise UsageFault("no tenant of this bundle has the key")
        asked = ExplainQuery(asked.origin, asked.model, tenant, asked.location, asked.tried, asked.overflow)
    views = {region: RegionView(RegionState.HEALTHY, ready=True) for region in policy.regions}
    return explained(policy, None, asked, views, Random())


def _known(policy: Policy, region: str) -> None:
    if region not in policy.regions:
        remedy = suggest(region, policy.regions, f"it has {len(policy.regions)} regions")
        raise UsageFault(f"the bundle has no region {region!r}; {remedy}")


def _record(given: str) -> AccessRecord:
    try:
        return read_record(sys.stdin.readline() if given == "-" else given)
    except BadRecord as error:
        raise UsageFault(f"--record: {error}") from None


def _same(origin: str | None, region: str) -> str:
    """The region of an agent, which explains what lands there."""
    if origin and origin != region:
        raise UsageFault(f"an agent of {region} explains what lands there; --origin is {origin}")
    return region


def _digest(key_file: Path) -> str:
    try:
        return sha256(key_file.read_bytes().strip()).hexdigest()
    except OSError as error:
        raise UsageFault(f"{key_file}: cannot read the key: {error.strerror}") from None


def _tried(given: list[str]) -> dict[str, Reason]:
    tried = {}
    for one in given:
        region, _, reason = one.partition("=")
        try:
            tried[region] = Reason(reason or Reason.UNREACHABLE)
        except ValueError:
            raise UsageFault(
                f"--tried {one}: {suggest(reason, list(Reason), 'docs/errors.md lists the reasons')}"
            ) from None
    return tried
