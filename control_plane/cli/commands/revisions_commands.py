"""`penstock policy revisions`, `apply` and `rollback`: what became of the source's revisions, and going back to one."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.api_client import ApiClient
from control_plane.cli.commands.rollout_commands import LIMIT, ordered
from control_plane.cli.connection_options import Fleet, for_fleet
from control_plane.cli.error_output import CommandFault, telling
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.reason_option import ReasonOption
from control_plane.cli.rollout_view import revisions_view
from control_plane.policy.source.judgement import Revision, RevisionPage

PolicyArgument = Annotated[
    str, typer.Argument(help="Digest of the policy, or its beginning, as `policy revisions` shows it.")
]
MIN_DIGEST = 6
"""Characters of a digest's beginning that name a policy."""


@for_fleet
def revisions(
    fleet: Fleet,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what became of the last revisions of the policy source, newest first."""
    with telling("policy revisions"), fleet.connect() as api:
        every = _revisions(api)
    print_as(output, every, lambda: revisions_view(every))


@for_fleet
def apply(
    fleet: Fleet,
    policy: PolicyArgument,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Roll a policy out that is kept, as if the source had it now."""
    with telling("policy apply"), fleet.connect() as api:
        ordered(api, f"/v1/policies/{_digest(api, policy)}/apply", reason, output)


@for_fleet
def rollback(
    fleet: Fleet,
    policy: PolicyArgument,
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Go back to a kept policy that every region obeyed once, everywhere and at once."""
    with telling("policy rollback"), fleet.connect() as api:
        ordered(api, f"/v1/policies/{_digest(api, policy)}/rollback", reason, output)


def _revisions(api: ApiClient) -> list[Revision]:
    page: RevisionPage = api.ask("GET", "/v1/policies", params={"limit": LIMIT}).decoded(RevisionPage)
    return list(page.items)


def _digest(api: ApiClient, beginning: str) -> str:
    if len(beginning) == 64:
        return beginning
    if len(beginning) < MIN_DIGEST:
        raise CommandFault(f"{beginning!r} is too short: give {MIN_DIGEST} characters of the digest or more")
    found = sorted({one.digest for one in _revisions(api) if one.digest.startswith(beginning)})
    if len(found) != 1:
        what = "no revision has" if not found else f"{len(found)} revisions have"
        raise CommandFault(f"{what} a policy that begins with {beginning!r}; see `penstock policy revisions`")
    return found[0]
