"""A tenant's quota: rate, burst, concurrency, and each agent's share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.admission.token_bucket import QuotaExceeded, QuotaUsage, end, start, unused
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.routing.reasons import Reason, Refusal
from regional_agent.requests.tenant_quotas import RECOUNT_S, Quotas

RATE = Quota(requests_per_s=10.0, burst_requests=4, concurrent=None)
RUNNING = Quota(requests_per_s=None, burst_requests=1, concurrent=6)


def started(quota: Quota, use: QuotaUsage, agents: int, now: float) -> QuotaUsage:
    after = start(use, quota, agents, now)
    assert isinstance(after, QuotaUsage)
    return after


def test_a_burst_then_the_rate_with_the_time_to_wait() -> None:
    use = unused(RATE, 1, 0.0)
    for _ in range(4):
        use = started(RATE, use, 1, 0.0)
    beyond = start(use, RATE, 1, 0.05)
    assert isinstance(beyond, QuotaExceeded)
    assert beyond.retry_after_s == pytest.approx(0.05)
    use = started(RATE, use, 1, 0.1)
    assert isinstance(start(use, RATE, 1, 0.1), QuotaExceeded)


def test_what_runs_at_once_is_given_back_by_what_ends() -> None:
    use = unused(RUNNING, 1, 0.0)
    for _ in range(6):
        use = started(RUNNING, use, 1, 0.0)
    beyond = start(use, RUNNING, 1, 99.0)
    assert isinstance(beyond, QuotaExceeded)
    assert beyond.retry_after_s is None
    assert started(RUNNING, end(use), 1, 99.0).running == 6
    assert end(QuotaUsage(0.0, 0.0)).running == 0


def test_agents_enforce_equal_parts_and_at_least_one() -> None:
    assert started(RUNNING, QuotaUsage(0.0, 0.0, 1), 3, 0.0).running == 2
    assert isinstance(start(QuotaUsage(0.0, 0.0, 2), RUNNING, 3, 0.0), QuotaExceeded)
    assert started(RUNNING, QuotaUsage(0.0, 0.0), 100, 0.0).running == 1
    beyond = start(QuotaUsage(0.0, 0.0), RATE, 5, 0.0)
    assert isinstance(beyond, QuotaExceeded)
    assert beyond.retry_after_s == pytest.approx(0.5)


@given(
    st.lists(st.floats(0.0, 2.0), max_size=80),
    st.floats(0.1, 100.0),
    st.integers(1, 20),
    st.integers(1, 5),
)
def test_no_span_of_time_lets_through_more_than_its_rate_and_one_burst(
    pauses: list[float], per_s: float, most: int, agents: int
) -> None:
    quota = Quota(per_s, most, None)
    now, use, times = 0.0, unused(quota, agents, 0.0), []
    for pause in pauses:
        now += pause
        after = start(use, quota, agents, now)
        if isinstance(after, QuotaUsage):
            use = after
            times.append(now)
        else:
            assert after.retry_after_s is not None
            assert isinstance(start(use, quota, agents, now + after.retry_after_s + 1e-6), QuotaUsage), "a promise"
    for first in range(len(times)):
        for last in range(first, len(times)):
            span_s = times[last] - times[first]
            assert last - first + 1 <= max(1.0, most / agents) + span_s * per_s / agents + 1e-6


class TestQuotas:
    def test_each_tenant_has_its_own_and_one_without_is_not_counted(self) -> None:
        quotas = Quotas(lambda: 1)
        busy, idle = Tenant("busy", "open", quota=RUNNING), Tenant("idle", "open", quota=RUNNING)
        assert quotas.start(Tenant("free", "open"), 0.0) is False
        for _ in range(6):
            assert quotas.start(busy, 0.0) is True
        refusal = quotas.start(busy, 0.0)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.QUOTA_EXCEEDED
        assert refusal.retry_after_s
        assert quotas.start(idle, 0.0) is True
        quotas.end("busy")
        assert (quotas.running("busy"), quotas.running("idle"), quotas.running("free")) == (5, 1, 0)

    def test_the_agents_are_counted_now_and_then(self) -> None:
        agents = [1]
        quotas = Quotas(lambda: agents[0])
        tenant = Tenant("one", "open", quota=RUNNING)
        for _ in range(3):
            assert quotas.start(tenant, 0.0) is True
        agents[0] = 2
        assert quotas.start(tenant, RECOUNT_S / 2) is True
        assert isinstance(quotas.start(tenant, RECOUNT_S), Refusal)
