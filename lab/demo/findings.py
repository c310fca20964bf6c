"""The results of the checks of a run. A check without observations fails: what did not happen proves nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from rich.console import Console

from lab.demo.records import Sighting

NOTHING = "nothing to judge by: "


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    name: str
    passed: bool
    says: str
    observed: int
    """Number of observations that could have contradicted the promise; without any, the check fails."""
    phase: str | None = None
    """The checked phase of the run; None for the whole run."""


class Measured(NamedTuple):
    """What a fault measured while it was in effect."""

    events: int
    """Number of events that the fault caused or measured; without any, the fault was not in effect."""
    says: str


def finding(name: str, holds: bool, observed: int, says: str, phase: str | None = None) -> Finding:
    """Return the result of a check.

    Args:
        holds: whether no observation contradicts the promise.
        observed: number of observations that could have contradicted the promise.
        says: the text for a report.
    """
    return Finding(name, holds and observed > 0, says if observed > 0 else NOTHING + says, observed, phase)


def residency(sightings: Sequence[Sighting], unseen: int = 0) -> Finding:
    """Check that every request at an engine was within its permitted regions.

    Args:
        unseen: answered requests that the residency witness did not see, whose residency is unproved.
    """
    outside = [sighting for sighting in sightings if sighting.violates]
    unrestricted = max((len(sighting.required) for sighting in sightings), default=0)
    bound = sum(len(sighting.required) < unrestricted for sighting in sightings)
    says = (
        f"{len(outside)} of {len(sightings)} requests at engines were outside their permitted regions; "
        f"{bound} were restricted to some regions"
    )
    if outside:
        says += f"; the first reached {outside[0].region}, its permitted regions are {', '.join(outside[0].required)}"
    if unseen:
        says += f"; the witness has no record of {unseen} answered requests"
    return finding("residency", not outside and not unseen, bound, says)


def print_findings(console: Console, findings: Iterable[Finding]) -> None:
    """Print a line for each finding."""
    for found in findings:
        mark = "[green]✓[/]" if found.passed else "[bold red]✗[/]"
        console.print(mark, f"[bold]{found.name}[/]", highlight=False, end=": ")
        console.print(found.says, highlight=False, markup=False, soft_wrap=True)


def percent(share: float | None) -> str:
    """Return a share (0-1) as text."""
    return "none" if share is None else f"{share:.0%}"


def seconds(value: float | None) -> str:
    """Return a duration (s) as text; "never" for None."""
    # 0.0 is added, because the rounded value may be -0.0.
    return "never" if value is None else f"{round(value, 2) + 0.0:.2f} s"
