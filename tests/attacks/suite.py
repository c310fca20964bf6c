"""The list of attacks, and the functions by which an attack states its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from tests.attacks.fleet import Fleet

Run = Callable[[Fleet], Awaitable[None]]


class Broken(Exception):
    """The attack succeeded; the message states what happened."""


class Attack(NamedTuple):
    """One attack; the docstring of `run` states the attack and the expected result."""

    number: str
    run: Run

    @property
    def title(self) -> str:
        """First line of the docstring."""
        return (self.run.__doc__ or "").strip().split("\n")[0].rstrip(".")


ATTACKS: list[Attack] = []


def attack(number: str) -> Callable[[Run], Run]:
    """Adds a function to the attacks."""

    def add(run: Run) -> Run:
        ATTACKS.append(Attack(number, run))
        return run

    return add


def expect(condition: object, otherwise: str) -> None:
    """Raises Broken with `otherwise` unless the condition is true."""
    if not condition:
        raise Broken(otherwise)
