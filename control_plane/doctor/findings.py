"""What a check found, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

MAX_SKEW_S = 5.0
"""Difference of two clocks from which on agents reject each other's probes (`penstock.wire.route_context`)."""

SOON_S = 14 * 86_400.0
"""Time (s) before the end of a certificate from which on it is reported."""

SYNCHRONISE = "synchronise both with NTP: certificates and signatures depend on the time"
"""What to do about clocks that differ."""

_DAY_S = 86_400.0


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    WARNING = "warning"
    """Nothing is lost yet."""
    PROBLEM = "problem"
    """Something does not work."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    severity: Severity
    subject: str
    """What was checked, such as `agent eu-de-1`."""
    found: str
    remedy: str = ""
    """What to do; empty if nothing is to be done."""


def ok(subject: str, found: str) -> Finding:
    """Return the finding of a check that found nothing wrong."""
    return Finding(Severity.OK, subject, found)


def warning(subject: str, found: str, remedy: str) -> Finding:
    """Return a finding that has no effect yet."""
    return Finding(Severity.WARNING, subject, found, remedy)


def of_certificate(subject: str, expires_at: float, now: float) -> Iterator[Finding]:
    """Report a certificate that has expired, or expires soon; `expires_at` is a Unix time (s)."""
    left_s = expires_at - now
    if left_s <= 0.0:
        yield problem(subject, "its certificate has expired", "renew it with `penstock certs rotate`")
    elif left_s < SOON_S:
        yield warning(subject, f"its certificate expires in {left_s / _DAY_S:.0f} days", "`penstock certs rotate`")


def of_clocks(other: str, other_at: float, now: float) -> Iterator[Finding]:
    """Report a clock that differs from this machine's; both are Unix times (s) of one moment."""
    skew_s = now - other_at
    if abs(skew_s) > MAX_SKEW_S:
        found = f"{other} and this machine differ by {abs(skew_s):.0f} s"
        yield problem("clocks", found, SYNCHRONISE)


def problem(subject: str, found: str, remedy: str) -> Finding:
    """Return a finding that has an effect."""
    return Finding(Severity.PROBLEM, subject, found, remedy)
