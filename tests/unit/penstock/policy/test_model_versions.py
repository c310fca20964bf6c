"""Versions of a model: shares by random draw, and sessions that keep their version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.model_versions import session_position, version_at

SESSIONS = [f"session-{n}".encode() for n in range(4000)]


def split(*percents: float) -> ModelVersions:
    return ModelVersions("m", tuple(Version(f"v{n}", percent) for n, percent in enumerate(percents)))


def served(versions: ModelVersions) -> list[str]:
    return [version_at(versions, session_position("t", "m", session)) for session in SESSIONS]


def test_sessions_fall_into_versions_by_their_shares() -> None:
    counts = served(split(70.0, 25.0, 5.0))
    assert counts.count("v0") / len(SESSIONS) == pytest.approx(0.70, abs=0.03)
    assert counts.count("v2") / len(SESSIONS) == pytest.approx(0.05, abs=0.015)


def test_a_growing_canary_gives_none_of_its_sessions_back() -> None:
    small, large = served(split(95.0, 5.0)), served(split(80.0, 20.0))
    assert all(after == "v1" for before, after in zip(small, large, strict=True) if before == "v1")


def test_blue_and_green() -> None:
    assert set(served(split(100.0, 0.0))) == {"v0"}
    assert set(served(split(0.0, 100.0))) == {"v1"}


def test_a_session_is_one_of_its_tenant_and_model() -> None:
    assert session_position("t", "m", b"s") == session_position("t", "m", b"s")
    assert (
        len({session_position("t", "m", b"s"), session_position("u", "m", b"s"), session_position("t", "n", b"s")}) == 3
    )


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6), st.floats(0.0, 100.0, exclude_max=True))
def test_every_place_has_a_version_with_a_share(weights: list[float], place: float) -> None:
    versions = split(*(100.0 * weight / sum(weights) for weight in weights), 0.0)
    name = version_at(versions, place)
    assert {version.model: version.percent for version in versions.versions}[name] > 0.0
