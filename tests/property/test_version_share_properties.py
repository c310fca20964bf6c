"""Sessions and tenants in the rollout of a version: they keep it, and the versions receive their shares."""

from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.kinds.model_rollouts import ModelRollout, StickyBy
from penstock.policy.kinds.models import ModelVersions, Version
from penstock.policy.model_versions import receives_new, session_position, sticky_key, version_at, with_share

FORWARDS = ModelVersions("chat", (Version("v1", 100.0), Version("v2", 0.0)))
BACKWARDS = ModelVersions("chat", (Version("v2", 0.0), Version("v1", 100.0)))
SESSIONS = [f"session-{number}".encode() for number in range(400)]
shares = st.floats(0.0, 100.0)
versions_of = st.sampled_from([FORWARDS, BACKWARDS])


def on_new(versions: ModelVersions, tenant: str, percent: float, rollout: ModelRollout) -> set[bytes]:
    shared = with_share(versions, "v2", percent)
    keys = ((session, sticky_key(rollout, session)) for session in SESSIONS)
    return {
        session
        for session, key in keys
        if key is not None and version_at(shared, session_position(tenant, "chat", key)) == "v2"
    }


@given(versions_of, st.floats(0.0, 100.0, exclude_max=True), shares, shares)
def test_a_growing_share_moves_sessions_to_the_new_version_only(
    versions: ModelVersions, position: float, one: float, other: float
) -> None:
    less, more = sorted((one, other))
    if version_at(with_share(versions, "v2", less), position) == "v2":
        assert version_at(with_share(versions, "v2", more), position) == "v2"


@given(versions_of, st.text(min_size=1, max_size=8), shares)
def test_the_new_version_receives_its_share_of_the_sessions(
    versions: ModelVersions, tenant: str, percent: float
) -> None:
    share, found = percent / 100.0, len(on_new(versions, tenant, percent, ModelRollout("chat", "v2")))
    # Six standard deviations of a binomial distribution.
    slack = 6.0 * sqrt(len(SESSIONS) * share * (1.0 - share)) + 1e-6
    assert found == pytest.approx(len(SESSIONS) * share, abs=slack)


@given(versions_of, st.text(min_size=1, max_size=8), shares)
def test_all_sessions_of_a_tenant_have_one_version(versions: ModelVersions, tenant: str, percent: float) -> None:
    found = on_new(versions, tenant, percent, ModelRollout("chat", "v2", sticky_by=StickyBy.TENANT))
    assert found in (set(), set(SESSIONS))


@given(versions_of, shares)
def test_tenants_receive_the_new_version_by_its_share(versions: ModelVersions, percent: float) -> None:
    shared, tenants = with_share(versions, "v2", percent), [f"tenant-{number}" for number in range(400)]
    found = sum(version_at(shared, session_position(tenant, "chat", b"")) == "v2" for tenant in tenants)
    share = percent / 100.0
    assert found == pytest.approx(len(tenants) * share, abs=6.0 * sqrt(len(tenants) * share * (1.0 - share)) + 1e-6)


@given(st.sampled_from(["in", "out", "other"]), st.sampled_from([None, b"new", b"old", b"", b"NEW", b"v2"]))
def test_exclusion_wins_over_the_header_and_the_header_over_the_opt_in(tenant: str, choice: bytes | None) -> None:
    rollout = ModelRollout("chat", "v2", opt_in_tenants=("in",), excluded_tenants=("out",))
    chosen = {b"new": True, b"old": False}.get(choice or b"")
    expected = False if tenant == "out" else chosen if chosen is not None else True if tenant == "in" else None
    assert receives_new(rollout, tenant, choice) is expected
