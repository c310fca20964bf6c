"""Why a change is made: every command that changes something wants to be told."""

from __future__ import annotations

from typing import Annotated

import typer

ReasonOption = Annotated[str, typer.Option("--reason", "-r", help="Why; kept in the audit log.", show_default=False)]
