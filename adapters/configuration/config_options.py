"""The command-line options that both daemons have for their configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        show_default=False,
        help="YAML file of the settings; environment variables win over it. Default: the file that $PENSTOCK_CONFIG"
        " ($PENSTOCK_AGENT_CONFIG for an agent) names, if any.",
    ),
]
CheckConfigOption = Annotated[
    bool,
    typer.Option(
        "--check-config",
        help="Check the settings and every file that they name without connecting anywhere; exit with 0, or 2 if"
        " something is invalid.",
    ),
]
PrintConfigOption = Annotated[
    bool,
    typer.Option(
        "--print-config",
        help="Print the settings in effect as a configuration file, with the source of each, without secrets; exit.",
    ),
]
VersionOption = Annotated[bool, typer.Option("--version", help="Print the version and exit.")]
