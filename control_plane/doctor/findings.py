"""What a check found, and what to do."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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


def problem(subject: str, found: str, remedy: str) -> Finding:
    """Return a finding that has an effect."""
    return Finding(Severity.PROBLEM, subject, found, remedy)
