"""`penstock policy`: check policy bundles, offline, as a policy repository's own CI does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from control_plane.commands.faults import AT_FAULT, FAILED
from control_plane.commands.output import Output, OutputOption, print_json, print_view
from control_plane.commands.verified import verified_json, verified_view
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.errors import PolicyRefused
from control_plane.policy.folder import read_folder
from control_plane.policy.schema import schema_text
from penstock.policy import Policy
from penstock.verification.verify import verify as verify_policy

app = typer.Typer(no_args_is_help=True, help="Check policy bundles.")

BundleArgument = Annotated[
    Path, typer.Argument(exists=True, file_okay=False, show_default=False, help="Folder of a policy bundle.")
]


@app.command()
def lint(directory: BundleArgument, output: OutputOption = Output.TABLE) -> None:
    """Compile a bundle; print every error with its file and line, and exit with 1 if there is any."""
    try:
        policy = compile_bundle(read_folder(directory))
    except PolicyRefused as refused:
        if output is Output.JSON:
            print_json({"good": False, "errors": [msgspec.to_builtins(error) for error in refused.errors]})
        else:
            for error in refused.errors:
                print(error)
        print(f"{directory}: refused, {len(refused.errors)} error(s)", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    counts = {
        "regions": len(policy.regions),
        "models": len(policy.models),
        "tenants": len(policy.tenants),
        "residency_rules": len(policy.residency),
    }
    if output is Output.JSON:
        print_json({"good": True, "digest": policy.digest(), **counts})
    else:
        told = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in counts.items())
        print(f"{directory}: good, {told}, digest {policy.digest()[:12]}")


@app.command()
def verify(directory: BundleArgument, output: OutputOption = Output.TABLE) -> None:
    """Prove that nothing reaches a forbidden region, and that every residency class survives the loss of any one.

    Exit code 1 where that does not hold, with the requests, regions and rules that show it; 2 where the bundle is not
    well-formed. A class that need not survive is written down in a document of kind AcceptedLoss.
    """
    found = verify_policy(_compiled(directory))
    if output is Output.JSON:
        print_json(verified_json(found))
    else:
        print_view(verified_view(found))
    if not found.good:
        raise typer.Exit(FAILED)


@app.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    print(schema_text(), end="")


def _compiled(directory: Path) -> Policy:
    """The policy of a bundle that is well-formed; the others are told of as `lint` does, and end the command."""
    try:
        return compile_bundle(read_folder(directory))
    except PolicyRefused as refused:
        for error in refused.errors:
            print(error, file=sys.stderr)
        print(f"{directory}: refused, {len(refused.errors)} error(s)", file=sys.stderr)
        raise typer.Exit(AT_FAULT) from None
