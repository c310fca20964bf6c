"""A role includes all lesser roles, and a scope limits a caller to its regions."""

from __future__ import annotations

import pytest

from adapters.access.callers import Caller, Role


def test_each_role_includes_the_lesser_roles() -> None:
    covered = {role: {needed for needed in Role if role.covers(needed)} for role in Role}
    assert covered == {
        Role.MONITOR: {Role.MONITOR},
        Role.VIEWER: {Role.MONITOR, Role.VIEWER},
        Role.OPERATOR: {Role.MONITOR, Role.VIEWER, Role.OPERATOR},
        Role.ADMIN: set(Role),
    }


@pytest.mark.parametrize(
    ("scope", "regions", "reached"),
    [
        (None, {"eu-de"}, True),
        (None, None, True),
        (frozenset({"eu-de", "eu-es"}), {"eu-de"}, True),
        (frozenset({"eu-de", "eu-es"}), {"eu-de", "us-east"}, False),
        (frozenset({"eu-de"}), None, False),
        (frozenset(), {"eu-de"}, False),
    ],
)
def test_a_scope_contains_the_named_regions(
    scope: frozenset[str] | None, regions: set[str] | None, reached: bool
) -> None:
    assert Caller("one", Role.OPERATOR, scope).reaches(regions) is reached
