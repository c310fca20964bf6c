"""`penstock policy revisions`, `apply` and `rollback`: list the revisions of the policy source, and return to one."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.api_client import ApiClient
from control_plane.cli.command_options import ChangeClient, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.commands.operating.rollout_commands import LIMIT, request_action
from control_plane.cli.error_output import UsageFault
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.rollout_view import revisions_view
from control_plane.page import Page
from control_plane.policy.source.revision import Revision

PolicyArgument = Annotated[
    str, typer.Argument(help="Digest of the policy, or a prefix of it, as `policy revisions` prints it.")
]
MIN_DIGEST_CHARS = 6
"""Minimum length of a digest prefix."""


@with_fleet_options
def revisions(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the last revisions of the policy source, newest first, with the result of each."""
    every = _revisions(api)
    print_as(output, every, lambda: revisions_view(every))


@with_fleet_options
def apply(
    api: ChangeClient,
    policy: PolicyArgument,
    reason: ReasonOption,
    allow_removal: Annotated[
        bool,
        typer.Option(
            "--allow-removal",
            help="Apply it although it removes residency rules, data classes, or many other documents.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the rollout of a stored policy, as if the policy source had it now."""
    options = {"allow_removal": True} if allow_removal else {}
    request_action(api, f"/v1/policies/{_digest(api, policy)}/apply", reason, output, **options)


@with_fleet_options
def rollback(
    api: ChangeClient, policy: PolicyArgument, reason: ReasonOption, output: OutputOption = Output.TABLE
) -> None:
    """Return every region at once to a stored policy that the whole fleet has run before."""
    request_action(api, f"/v1/policies/{_digest(api, policy)}/rollback", reason, output)


def _revisions(api: ApiClient) -> list[Revision]:
    page = api.request("GET", "/v1/policies", params={"limit": LIMIT}).decoded(Page[Revision])
    return list(page.items)


def _digest(api: ApiClient, prefix: str) -> str:
    if len(prefix) == 64:
        return prefix
    if len(prefix) < MIN_DIGEST_CHARS:
        raise UsageFault(f"{prefix!r} is too short: give at least {MIN_DIGEST_CHARS} characters of the digest")
    found = sorted({revision.digest for revision in _revisions(api) if revision.digest.startswith(prefix)})
    if len(found) != 1:
        count = "no revision has" if not found else f"{len(found)} revisions have"
        raise UsageFault(f"{count} a policy with the digest prefix {prefix!r}; see `penstock policy revisions`")
    return found[0]
