"""`penstock explain`: explain a routing decision by a control plane, by an agent, or offline by a bundle."""

from __future__ import annotations

import sys
import time
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from adapters.error_text import suggest
from adapters.files.plain_file import read_plain_file
from adapters.files.secret_file import MAX_FILE_BYTES
from control_plane.cli.access_log_line import AccessLogLine, BadLogLine, read_line
from control_plane.cli.agent_client import AgentAccess, fetch_explanation
from control_plane.cli.api_client import ApiClient
from control_plane.cli.bundle_arguments import compiled
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_json, print_view
from control_plane.cli.views.explain_view import explanation_view, present_lines
from control_plane.status.query_responses import ExplainResponse
from penstock.health.region_health import RegionState
from penstock.policy.adapter_patterns import served_model
from penstock.policy.geography import Location, country_error
from penstock.policy.policy import Policy
from penstock.routing.explain import ExplainQuery, Explanation, tenant_by_key
from penstock.routing.explain import explain as explained
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionView

OFFLINE = "offline: residency and distance only; assumes that every region is healthy, and no plan"


@with_fleet_options
def explain(
    fleet: FleetOptions,
    origin: Annotated[str | None, typer.Option(help="Region that receives the request.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="Requested model.", show_default=False)] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant of the request (default: no API key).")] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="File with the API key, instead of --tenant; only its SHA-256 is sent."),
    ] = None,
    country: Annotated[str | None, typer.Option(help="Country of the client, such as DE.")] = None,
    subdivision: Annotated[str | None, typer.Option(help="Subdivision of the country, such as BY.")] = None,
    ip: Annotated[str | None, typer.Option(help="Address of the client, instead of --country.")] = None,
    tried: Annotated[
        list[str] | None, typer.Option(help="Region that did not start the request, as region=reason; may be repeated.")
    ] = None,
    overflow: Annotated[bool, typer.Option("--overflow", help="The origin is full.")] = False,
    batch: Annotated[bool, typer.Option("--batch", help="The request is one of a job.")] = False,
    path: Annotated[str, typer.Option(help="Path of the request: explains its route too.")] = "",
    method: Annotated[str, typer.Option(help="Method of the request, with --path.")] = "POST",
    record: Annotated[
        str | None, typer.Option(help="Line of an agent's access log to take the request from; - reads it from stdin.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Query this agent, as region/name; adds waits, credits and endpoints."),
    ] = None,
    agents_key_file: Annotated[
        Path | None,
        typer.Option(help="File with your API key for agents, with --agent (default: $PENSTOCK_AGENTS_KEY_FILE)."),
    ] = None,
    session: Annotated[str | None, typer.Option(help="Name of the session, as in `x-session-id`.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Explain offline by this bundle: a folder, or REPOSITORY@REF:FOLDER.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain which region would serve a request, and which rule, with file and line, rejects each other region."""
    answer: ExplainResponse | None = None
    with exit_on_error("explain"):
        logged = _logged_line(record) if record is not None else None
        if logged is not None:
            origin, model = origin or logged.origin, model or logged.model
            tenant = tenant or logged.tenant
            country, subdivision = country or logged.country or None, subdivision or logged.subdivision or None
        if agent is not None:
            origin = _origin_of_agent(origin, agent.partition("/")[0])
        if not origin or model is None:
            raise UsageFault("give --origin and --model")
        key_digest = _digest(key_file) if key_file is not None else None
        _check(tenant, key_digest, country)
        location = Location(country, subdivision)
        failed = _tried(tried) if tried else dict(logged.tried) if logged is not None else {}
        asked = ExplainQuery(origin, model, tenant, location, failed, overflow, path, method, session or "")
        asked = replace(asked, is_batch=batch, at=time.time())
        if policy is not None:
            if ip is not None or agent is not None:
                raise UsageFault("--ip and --agent cannot be used with --policy; give --country")
            explanation, notes = _offline(policy, asked, key_digest), [OFFLINE]
        else:
            with fleet.connect() as api:
                if agent is None and logged is not None:
                    answer = _as_logged(api, asked, key_digest, ip, logged)
                    explanation, notes = answer.explanation, list(answer.notes)
                elif agent is None:
                    explanation, notes = _online(api, asked, key_digest, ip)
                else:
                    explanation, notes = _by_agent(
                        api, fleet.agent_access(agents_key_file), agent, asked, key_digest, ip
                    )
    if output is Output.JSON:
        print_json(explanation if answer is None else answer)
        return
    if answer is not None:
        notes = [str(logged), *notes, *present_lines(answer)]
    elif logged is not None:
        notes = [f"{logged}; explained by the current state, not by the state at that time", *notes]
    print_view(explanation_view(explanation, notes))


def _check(tenant: str | None, key_digest: str | None, country: str | None) -> None:
    """Check combinations of options.

    Raises:
        UsageFault: two options contradict each other, or one is missing.
    """
    if key_digest is not None and tenant is not None:
        raise UsageFault("--tenant and --key-file cannot be used together")
    if country is not None and (flaw := country_error(country)) is not None:
        raise UsageFault(f"--country: {flaw}")


def _as_logged(
    api: ApiClient, asked: ExplainQuery, key_digest: str | None, ip: str | None, logged: AccessLogLine
) -> ExplainResponse:
    """Return the explanation of a logged request by the plan and the policy of its moment, and by those of now."""
    body = _body(asked, key_digest, ip)
    if logged.began_at is not None:
        body["then"] = {
            "at": logged.began_at,
            "policy_digest": logged.policy_digest or None,
            "plan_generation": logged.plan_generation,
            "server": logged.server or None,
        }
    return api.request("POST", "/v1/explain", body=body).decoded(ExplainResponse)


def _online(
    api: ApiClient, asked: ExplainQuery, key_digest: str | None, ip: str | None
) -> tuple[Explanation, list[str]]:
    body = _body(asked, key_digest, ip)
    answer = api.request("POST", "/v1/explain", body=body).decoded(ExplainResponse)
    notes = [f"as seen by {answer.seen_by}; spill credits, queue waits and endpoints are known only to agents"]
    if answer.provenance is not None:
        notes.append(f"policy from commit {answer.provenance}")
    if not answer.leading:
        notes.append(f"{answer.seen_by} does not lead, so the health of the regions is unknown")
    return answer.explanation, notes


def _body(asked: ExplainQuery, key_digest: str | None, ip: str | None) -> dict[str, Any]:
    return {
        "origin": asked.origin,
        "model": asked.model,
        "tenant": asked.tenant,
        "key_digest": key_digest,
        "ip": ip,
        "country": asked.location.country,
        "subdivision": asked.location.subdivision,
        "tried": asked.tried,
        "overflow": asked.overflow,
        "batch": asked.is_batch,
        "session": asked.session,
        "path": asked.path,
        "method": asked.method,
    }


def _by_agent(
    api: ApiClient,
    access: AgentAccess,
    name: str,
    asked: ExplainQuery,
    key_digest: str | None,
    ip: str | None,
) -> tuple[Explanation, list[str]]:
    agents = {
        f"{agent_status.region}/{agent_status.name}": agent_status.admin_url
        for agent_status in api.status().agents
        if agent_status.admin_url is not None
    }
    if name not in agents:
        raise UsageFault(f"there is no agent {name!r}; {suggest(name, agents, '`penstock status` lists regions')}")
    query: dict[str, str | list[str] | None] = {
        "model": asked.model,
        "tenant": asked.tenant,
        "key_digest": key_digest,
        "country": asked.location.country,
        "subdivision": asked.location.subdivision,
        "ip": ip,
        "session": asked.session or None,
        "overflow": "true" if asked.overflow else None,
        "batch": "true" if asked.is_batch else None,
        "tried": [f"{region}:{reason.value}" for region, reason in asked.tried.items()],
        "path": asked.path or None,
        "method": asked.method if asked.path else None,
    }
    return fetch_explanation(agents[name], query, access), [f"as seen by agent {name}"]


def _offline(bundle: str, asked: ExplainQuery, key_digest: str | None) -> Explanation:
    policy = compiled(bundle, "explain")
    for name in (asked.origin, *asked.tried):
        _require_region(policy, name)
    if key_digest is not None:
        tenant = tenant_by_key(policy, key_digest)
        if tenant is None:
            raise UsageFault("no tenant of the bundle has this key")
        asked = replace(asked, tenant=tenant)
    asked = replace(asked, model=served_model(policy, asked.model))
    views = {region: RegionView(RegionState.HEALTHY, ready=True, batch_room=1) for region in policy.regions}
    return explained(policy, None, asked, views, Random())


def _require_region(policy: Policy, region: str) -> None:
    if region not in policy.regions:
        remedy = suggest(region, policy.regions, f"it has {len(policy.regions)} regions")
        raise UsageFault(f"the bundle has no region {region!r}; {remedy}")


def _logged_line(given: str) -> AccessLogLine:
    try:
        return read_line(sys.stdin.readline() if given == "-" else given)
    except BadLogLine as error:
        raise UsageFault(f"--record: {error}") from None


def _origin_of_agent(origin: str | None, region: str) -> str:
    """Return the region of an agent, which explains only requests that it receives itself."""
    if origin and origin != region:
        raise UsageFault(f"an agent of {region} explains only requests that arrive there; --origin is {origin}")
    return region


def _digest(key_file: Path) -> str:
    try:
        return sha256(read_plain_file(key_file, MAX_FILE_BYTES).content.strip()).hexdigest()
    except OSError as error:
        raise UsageFault(f"{key_file}: cannot read the key: {error.strerror}") from None


def _tried(given: list[str]) -> dict[str, Reason]:
    tried = {}
    for item in given:
        region, _, reason = item.partition("=")
        try:
            tried[region] = Reason(reason or Reason.UNREACHABLE)
        except ValueError:
            raise UsageFault(
                f"--tried {item}: {suggest(reason, list(Reason), 'docs/errors.md lists the reasons')}"
            ) from None
    return tried
