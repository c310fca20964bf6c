"""The list of cases, and the functions by which a case states its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple

from tests.engines.region import Region

Run = Callable[[Region], Awaitable[None]]


class Failed(Exception):
    """A case failed; the message states what happened."""


class NotOffered(Exception):
    """A case needs a feature that this engine, this client or Penstock does not have; the message names the feature."""


class Case(NamedTuple):
    """One case; the first line of the docstring of `run` states the expected result."""

    subject: str
    """Engine or client that the case is about."""
    run: Run

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.run.__name__

    @property
    def title(self) -> str:
        """First line of the docstring."""
        return (self.run.__doc__ or "").strip().split("\n")[0].rstrip(".")


class Result(NamedTuple):
    """The outcome of a case."""

    title: str
    outcome: Literal["passed", "failed", "not offered"]
    seconds: float
    reason: str = ""


CASES: list[Case] = []


def case(subject: str) -> Callable[[Run], Run]:
    """Adds a function to the cases of a subject."""

    def add(run: Run) -> Run:
        CASES.append(Case(subject, run))
        return run

    return add


def expect(condition: object, otherwise: str) -> None:
    """Raises Failed with `otherwise` unless the condition is true."""
    if not condition:
        raise Failed(otherwise)
