"""`penstock policy`: check and compare policy bundles offline, for example in the CI of a policy repository.

Slow imports are inside the commands that need them, so that the other commands start faster.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from control_plane.cli.bundle_arguments import BundleArgument, compiled, compiled_revision, read_bundle
from control_plane.cli.commands.revisions_commands import apply, revisions, rollback
from control_plane.cli.comparison_options import (
    AlreadyLostOption,
    DemandOption,
    FleetFileOption,
    LostOption,
    TraceOption,
    given_demand,
    given_fleet,
)
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as, print_json, table_of
from control_plane.cli.views.simulation_view import simulated_json, simulated_view
from control_plane.cli.views.verification_view import verified_json, verified_view
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.source.repository_url import without_credentials
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import diff as differences
from penstock.policy.removal_guard import REMEDY, unaccepted_removals

app = typer.Typer(no_args_is_help=True, help="Check, compare and apply policies.")


@app.command()
def lint(bundle: BundleArgument, output: OutputOption = Output.TABLE) -> None:
    """Compile a bundle and print every error with its file and line. Exit with 1 if there are errors."""
    from control_plane.policy.compiler import compile_bundle
    from penstock.overrides.guard_rails import tenants_by_class
    from penstock.verification.policy_warnings import event_warnings, pattern_warnings, window_warnings

    try:
        with exit_on_error("policy lint"):
            policy = compile_bundle(read_bundle(bundle))
    except PolicyRefused as refused:
        if output is Output.JSON:
            print_json({"good": False, "errors": [msgspec.to_builtins(error) for error in refused.errors]})
        else:
            for error in refused.errors:
                print(error)
        print(f"{without_credentials(bundle)}: refused, {len(refused.errors)} error(s)", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED) from None
    counts = {
        "regions": len(policy.regions),
        "models": len(policy.models),
        "tenants": len(policy.tenants),
        "residency_rules": len(policy.residency),
    }
    windows, events = window_warnings(policy, tenants_by_class(policy)), event_warnings(policy, time.time())
    warnings = [*pattern_warnings(policy), *windows, *events]
    if output is Output.JSON:
        print_json({"good": True, "digest": policy.digest(), **counts, "warnings": warnings})
    else:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        listed = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items())
        print(f"{without_credentials(bundle)}: good, {listed}, digest {policy.digest()[:12]}")


@app.command()
def verify(bundle: BundleArgument, output: OutputOption = Output.TABLE) -> None:
    """Verify that no request reaches a forbidden region and that each residency class survives the loss of any region.

    Exit code 1 if that does not hold, with the requests, regions and rules concerned; 2 if the bundle is invalid. A
    document of kind AcceptedLoss exempts a class.
    """
    from penstock.verification.policy_warnings import event_warnings
    from penstock.verification.verify import verify as verify_policy

    policy = compiled(bundle, "policy verify")
    found = verify_policy(policy)
    found = msgspec.structs.replace(found, warnings=(*found.warnings, *event_warnings(policy, time.time())))
    print_as(output, verified_json(found), lambda: verified_view(found))
    if not found.passed:
        raise typer.Exit(EXIT_FAILED)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="Print the routes of this preset as documents.")] = None,
    model: Annotated[str | None, typer.Option(help="Fixed model of its requests.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the presets of routes, or print the routes of one as YAML that can be changed in a bundle."""
    from control_plane.policy.preset_documents import route_document, route_documents
    from penstock.routes.presets.preset_registry import PRESETS, preset_routes

    if name is None:
        rows = [
            {"name": name, "description": preset.description, "takes_model": preset.takes_model}
            for name, preset in PRESETS.items()
        ]
        table = table_of("preset", "API", "fixed model")
        for row in PRESETS:
            table.add_row(row, PRESETS[row].description, "may be set" if PRESETS[row].takes_model else "")
        print_as(output, rows, lambda: table)
        return
    with exit_on_error("policy presets"):
        try:
            routes = preset_routes(name, model)
        except ValueError as error:
            raise UsageFault(str(error)) from None
    if output is Output.JSON:
        print_json([route_document(route) for route in routes])
    else:
        print(route_documents(routes), end="")


@app.command()
def diff(before: BundleArgument, after: BundleArgument, output: OutputOption = Output.TABLE) -> None:
    """Compare two bundles by kind, name and field. Order, layout and comments are ignored.

    Removed documents for which AFTER lacks an AcceptedRemoval are printed on stderr: a control plane would not roll
    AFTER out.
    """
    old, new = compiled(before, "policy diff"), compiled_revision(after, "policy diff")
    changes = differences(old, new.policy)
    for removal in unaccepted_removals(old, new.policy, new.accepted_removals):
        print(f"would remove the {removal}: not rolled out; {REMEDY}", file=sys.stderr)
    if output is Output.JSON:
        print_json(changes)
        return
    for change in changes:
        print(change)
    print(f"{len(changes)} difference(s)" if changes else "no difference", file=sys.stderr)


@app.command()
def simulate(
    old: BundleArgument,
    new: BundleArgument,
    demand: DemandOption = None,
    trace: TraceOption = None,
    fleet_file: FleetFileOption = None,
    requests_per_s: Annotated[float, typer.Option(min=0.001, max=1e6, help="Requests/s of generated demand.")] = 100.0,
    lost: LostOption = None,
    already_lost: AlreadyLostOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare two policies on the same demand: moves, round trips, cost, refusals.

    Without --demand or --trace every tenant requests every model from every location. Without --fleet every region runs
    every model, with capacity for twice the demand. docs/simulating.md describes the files.
    """
    from control_plane.cli.demand_file import MAX_ROWS
    from penstock.what_if.assumed_demand import generated_demand, generated_fleet, max_generated_groups
    from penstock.what_if.comparison import Side, compare

    policies = (compiled(old, "policy simulate"), compiled(new, "policy simulate"))
    with exit_on_error("policy simulate"):
        _check_regions(policies[1:], lost or (), "the value of --lost")
        _check_regions(policies[:1], already_lost or (), "the value of --already-lost")
        given, capacity = given_demand(demand, trace), given_fleet(fleet_file)
        if given is None and max_generated_groups(policies[0]) > MAX_ROWS:
            raise UsageFault("too many tenants, models and regions to generate demand; give --demand or --trace")
        asked = given if given is not None else generated_demand(policies[0], requests_per_s)
        pools = capacity if capacity is not None else generated_fleet(policies, asked)
        _check_regions(policies, [row.origin for row in asked if row.origin], "an origin of the demand")
        _check_regions(policies, [row.region for row in pools], "a region of the fleet")
        _check_models(policies, [row.model for row in pools])
    before = Side(policies[0], frozenset(already_lost or ()))
    found = compare(before, Side(policies[1], before.lost | frozenset(lost or ())), asked, pools)
    print_as(
        output,
        simulated_json(found.before, found.after, found.moves),
        lambda: simulated_view(found.before, found.after, found.moves),
    )


def _check_regions(policies: Sequence[Policy], named: Iterable[str], what: str) -> None:
    """Reject misspelt regions, which would count as unsteered clients or as capacity that does not exist."""
    known = sorted({name for policy in policies for name in policy.regions})
    unknown = sorted(set(named) - set(known))
    if unknown:
        where = "in either bundle" if len(policies) > 1 else "in that bundle"
        raise UsageFault(f"no region {', '.join(unknown[:10])} {where}; {what} is one of {', '.join(known)}")


def _check_models(policies: Sequence[Policy], named: Iterable[str]) -> None:
    """Reject misspelt models, whose capacity no request could use."""
    known = sorted({name for policy in policies for name in policy.models})
    unknown = sorted(set(named) - set(known))
    if unknown:
        listed = f"a model of the fleet is one of {', '.join(known)}"
        raise UsageFault(f"no model {', '.join(unknown[:10])} in either bundle; {listed}")


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Folder of the new bundle.", show_default=False)],
    region: Annotated[
        list[str], typer.Option(help="NAME=PLACE of a region: a country (DE) or time zone (Europe/Berlin); repeatable.")
    ],
    model: Annotated[list[str], typer.Option(help="Name of a model that engines serve; repeatable.")],
    stay_in: Annotated[
        list[str] | None,
        typer.Option(help="Add a tenant whose requests stay in this country or bloc (EU, EEA, ...); repeatable."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write a starter bundle: regions, models, and tenants, whose API keys are printed once."""
    import secrets
    from hashlib import sha256

    from control_plane.policy.compiler import compile_bundle
    from control_plane.quickstart.places import UnknownPlace, place_named
    from control_plane.quickstart.starter_bundle import starter_bundle, tenant_name

    with exit_on_error("policy init"):
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageFault(f"{directory} is not an empty folder; name a new one")
        named = {each.partition("=")[0]: each.partition("=")[2] for each in region}
        if len(named) < len(region) or not all(named.values()):
            raise UsageFault("write each --region once, as NAME=PLACE, such as eu-de=DE")
        keys = {place: f"psk-{secrets.token_urlsafe(32)}" for place in (None, *(stay_in or ()))}
        digests = {place: sha256(key.encode()).hexdigest() for place, key in keys.items()}
        try:
            places = {name: place_named(place) for name, place in named.items()}
            files = starter_bundle(places, list(dict.fromkeys(model)), digests)
            compile_bundle(files)
        except UnknownPlace as error:
            raise UsageFault(str(error)) from None
        except PolicyRefused as refused:
            raise UsageFault("; ".join(map(str, refused.errors))) from None
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (directory / name).write_text(text, encoding="utf-8")
    tenants = {tenant_name(place): key for place, key in keys.items()}
    if output is Output.JSON:
        print_json({"directory": str(directory), "files": sorted(files), "api_keys": tenants})
    else:
        print(f"wrote {', '.join(sorted(files))} to {directory}")
        for tenant, key in tenants.items():
            print(f"API key of the tenant {tenant}, which is stored nowhere: {key}")
        print(f"next: penstock policy verify {directory}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of policy files."""
    from control_plane.policy.schema import schema_text

    print(schema_text(), end="")


for command in (revisions, apply, rollback):
    app.command()(command)
