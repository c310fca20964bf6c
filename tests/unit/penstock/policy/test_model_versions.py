"""Versions of a model: shares by random draw, and sessions that keep their version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.policy.kinds.model_rollouts import ModelRollout, StickyBy
from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.model_versions import (
    is_drawn,
    models_for,
    old_version,
    receives_new,
    rollout_of,
    session_position,
    sticky_key,
    version_at,
    with_share,
)
from penstock.policy.policy import Policy

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


def test_beyond_the_sum_of_the_shares_the_last_version_with_a_share_serves() -> None:
    assert version_at(split(99.5, 0.499_999, 0.0), 99.999_999_9) == "v1"


ROLLOUT = ModelRollout("m", "v1", (10.0,), opt_in_tenants=("in",), excluded_tenants=("out", "both"))


@pytest.mark.parametrize(
    ("tenant", "choice", "new"),
    [
        ("t", None, None),
        ("t", b"other", None),
        ("t", b"new", True),
        ("t", b"old", False),
        ("in", None, True),
        ("in", b"old", False),
        ("out", None, False),
        ("out", b"new", False),
    ],
)
def test_the_tenant_and_the_client_decide_before_the_share(tenant: str, choice: bytes | None, new: bool | None) -> None:
    assert receives_new(ROLLOUT, tenant, choice) is new
    versions = replace(split(90.0, 10.0), for_tiers={"gold": "v1"})
    policy = Policy({}, {}, {}, (), versions={"m": versions}, model_rollouts={"m": ROLLOUT})
    assert is_drawn(policy, ROLLOUT, Tenant(tenant, "open"), choice) is (new is None)
    assert is_drawn(policy, ROLLOUT, Tenant(tenant, "open", tier="silver"), choice) is (new is None)
    assert not is_drawn(policy, ROLLOUT, Tenant(tenant, "open", tier="gold"), choice)


def test_a_version_in_a_rollout_serves_before_it_has_a_share() -> None:
    versions = split(100.0, 0.0)
    assert models_for(Policy({}, {}, {}, (), versions={"m": versions}), "m") == ("v0",)
    policy = Policy({}, {}, {}, (), versions={"m": versions}, model_rollouts={"m": ROLLOUT})
    assert (models_for(policy, "m"), models_for(policy, "v9")) == (("v0", "v1"), ())
    assert (rollout_of(policy, "m"), rollout_of(policy, "n")) == (ROLLOUT, None)
    assert old_version(versions, ROLLOUT) == "v0"
    assert [each.percent for each in with_share(versions, "v1", 30.0).versions] == [70.0, 30.0]


def test_what_keeps_the_version_of_a_request() -> None:
    assert (sticky_key(ROLLOUT, b"s"), sticky_key(ROLLOUT, b"")) == (b"s", None)
    assert sticky_key(replace(ROLLOUT, sticky_by=StickyBy.TENANT), b"s") == b""
