"""The verbs of the command line: which have --dry-run, and the defaults that command line, API and page share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from control_plane.api.routes.overrides_routes import DrainRequest, OverrideRequest
from control_plane.api.tenant_bodies import Rotation
from control_plane.cli.main import app
from control_plane.overrides.override_fields import NO_END, OverrideFields
from tests.support.paths import ROOT

READS = """
    audit export, audit list, audit verify, cache purges, capacity, certs check, context list, dns explain, dns
    export, doctor, drill list, drill show, endpoints, explain, jobs, overrides list, plan diff, plan list, plan
    show, policy diff, policy lint, policy presets, policy revisions, policy schema, policy simulate, policy verify,
    profile, residency report, rollout list, rollout show, status, steer, tenant budgets, tenant key list, tenant
    list, tenant revoked-keys, tenant show, top, usage, usage sla, usage statement, what-if
"""
LOCAL = """
    anycast, backup, certs init, certs issue agent, certs issue control-plane, certs issue monitor, certs issue server,
    certs rotate, context add, context remove, context use, join, policy init, quickstart, serve
"""
"""Commands that write files of this machine, each named in the command, or run processes."""


def listed(text: str) -> set[str]:
    return {" ".join(each.split()) for each in text.split(",")}


def commands(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not hasattr(group, "list_commands") or group.invoke_without_command:
        yield path, group
    if not hasattr(group, "list_commands"):
        return
    context = group.context_class(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if not command.hidden:
            yield from commands(command, f"{path} {name}".strip())


def test_every_command_that_changes_a_fleet_has_a_dry_run() -> None:
    every = dict(commands(typer.main.get_command(app)))
    dry = {name for name, command in every.items() if any("--dry-run" in each.opts for each in command.params)}
    assert every.keys() - dry == listed(READS) | listed(LOCAL)


def test_an_override_lasts_until_lifted_by_default_everywhere() -> None:
    for model in (OverrideFields, OverrideRequest, DrainRequest):
        assert model.model_fields["expires_in_s"].default == NO_END
    page = (ROOT / "control_plane/ui/static/actions.js").read_text()
    first = re.search(r'const expiry = \(\) => h\("select", {}, h\("option", { value: "(\w+)" }', page)
    assert first is not None
    assert first[1] == NO_END
    every = dict(commands(typer.main.get_command(app)))
    for name in ("drain", "failover", "weight", "freeze"):
        (duration,) = [each for each in every[name].params if "--for" in each.opts]
        assert duration.default is None, "the API decides"


def test_a_rotated_key_is_valid_for_the_same_time_by_default_everywhere() -> None:
    page = (ROOT / "control_plane/ui/static/tenants.js").read_text()
    hours = re.search(r'const hours = h\("input", {[^}]* value: "(\d+)", required: true }', page)
    assert hours is not None, "an emptied field would end the old key at once"
    assert int(hours[1]) * 3600 == Rotation.model_fields["overlap_s"].default
    (overlap,) = [
        each
        for each in dict(commands(typer.main.get_command(app)))["tenant key rotate"].params
        if "--overlap" in each.opts
    ]
    assert overlap.default is None, "the API decides"
