"""`penstock policy`: check policy bundles, offline, as a policy repository's own CI does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from control_plane.commands.faults import FAILED
from control_plane.commands.output import Output, OutputOption, print_json
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.errors import PolicyRefused
from control_plane.policy.folder import read_folder
from control_plane.policy.schema import schema_text

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
def schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    print(schema_text(), end="")
