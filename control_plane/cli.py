"""`penstock`: run control planes and operate a fleet.

Exit codes: 0 done; 1 nobody answers, or what was asked for is refused or not so; 2 the command has to be corrected.
"""

from __future__ import annotations

import typer

from control_plane.commands import audit, context, plan, policy, rollout
from control_plane.commands.explain import explain
from control_plane.commands.overrides import app as overrides_app
from control_plane.commands.overrides import drain, failover, freeze, undrain, unfreeze, weight
from control_plane.commands.revisions import apply, revisions, rollback
from control_plane.commands.serve import serve
from control_plane.commands.status import status
from control_plane.commands.steer import steer
from control_plane.commands.what_if import what_if

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
app.command()(serve)
app.command()(status)
app.command()(explain)
app.command()(steer)
app.command("what-if")(what_if)
for command in (drain, undrain, failover, weight, freeze, unfreeze):
    app.command()(command)
app.add_typer(overrides_app, name="overrides")
app.add_typer(plan.app, name="plan")
policy.app.command()(revisions)
policy.app.command()(apply)
policy.app.command()(rollback)
app.add_typer(policy.app, name="policy")
app.add_typer(rollout.app, name="rollout")
app.add_typer(audit.app, name="audit")
app.add_typer(context.app, name="context")


def main() -> None:
    """The `penstock` command."""
    app(prog_name="penstock")
