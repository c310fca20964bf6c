"""The result of a policy verification, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of

if TYPE_CHECKING:
    # Imported for types only, so that commands without such values do not load the planner.
    from penstock.verification.breach import Breach
    from penstock.verification.survival import Survival
    from penstock.verification.verify import VerificationReport

MAX_SHOWN = 20
"""Maximum number of breaches that are printed; one defect of a policy can cause many breaches."""


def verified_json(found: VerificationReport) -> dict[str, Any]:
    """Return the whole report for JSON, with `good` for whether the policy passed."""
    classes = [
        msgspec.to_builtins(survival) | {"survives_any_one": survival.survives_any_one} for survival in found.classes
    ]
    return {"good": found.passed, **msgspec.to_builtins(found), "classes": classes}


def verified_view(found: VerificationReport) -> RenderableType:
    """Return the view of a verification: losses that each class survives, errors, warnings, and the checks made."""
    return Group(_classes(found), *_lines(found))


def _classes(found: VerificationReport) -> Table:
    table = table_of("regions", "whose requests", "any one lost", "any two lost", title="Residency classes")
    for survival in found.classes:
        table.add_row(", ".join(survival.regions), "\n".join(survival.requests), _at_one(survival), _at_two(survival))
    return table


def _at_one(survival: Survival) -> Text:
    if survival.survives_any_one:
        return Text("survives", "green")
    lost = ", ".join(end.lost[0] for end in survival.ends if len(end.lost) == 1)
    return Text(
        f"not without {lost}" + (" (accepted)" if survival.accepted else ""),
        "yellow" if survival.accepted else "bold red",
    )


def _at_two(survival: Survival) -> Text:
    if not survival.ends:
        return Text("survives", "green")
    return Text("; ".join(f"not without {' and '.join(end.lost)}" for end in survival.ends), "yellow")


def _lines(found: VerificationReport) -> Iterator[Text]:
    for breach in found.breaches[:MAX_SHOWN]:
        yield Text(f"FORBIDDEN: {_message(breach)}", "bold red")
    if len(found.breaches) > MAX_SHOWN:
        yield Text(f"and {len(found.breaches) - MAX_SHOWN} more", "bold red")
    for survival in found.unsurvived:
        for end in survival.ends:
            if len(end.lost) == 1:
                yield Text(f"DOES NOT SURVIVE: {end}", "bold red")
    if found.unsurvived:
        yield Text("where this is meant, write an AcceptedLoss with the regions of the class; else permit another one")
    for tenant in found.unserved:
        yield Text(f"NEVER SERVED: every request of tenant {tenant} is refused, wherever its client is", "bold red")
    for refused in found.refused:
        where = "while their location is unknown" if refused.unknown_location else "always"
        yield Text(f"refused {where}: {refused.requests}, by {', '.join(refused.because)}", "yellow")
    for warning in found.warnings:
        yield Text(f"warning: {warning}", "yellow")
    yield Text(_done(found), "green" if found.passed else "bold red")


def _message(breach: Breach) -> str:
    without = f" without {', '.join(breach.lost)}" if breach.lost else ""
    against = f", against {' and '.join(breach.rules)}" if breach.rules else ""
    return f"{breach.region}, {breach.detail} (stage {breach.stage}){without}: {breach.requests}{against}"


def _done(found: VerificationReport) -> str:
    reached = "" if found.breaches else "no forbidden region or model can be reached"
    verdict = f"good: {reached}" if found.passed else f"NOT good, though {reached}" if reached else "NOT good"
    losses = "any region" if found.lost_at_once == 1 else f"any {found.lost_at_once} regions"
    partly = f"; only small losses and small remainders of {', '.join(found.partly)}" if found.partly else ""
    names = f"{found.dns_answers} DNS answers, " if found.dns_answers else ""
    return (
        f"{verdict}; tried all {found.situations} kinds of request, {found.decisions} decisions, {names}"
        f"{found.plans} plans up to the loss of {losses}{partly}; policy {found.digest[:12]}"
    )
