"""What clients ask for in headers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.policy.kinds.tenants import BATCH_PRIORITY, MIN_PRIORITY
from regional_agent.requests.request_options import RequestOptions


@pytest.mark.parametrize(
    ("asked", "of_tenant", "priority"),
    [(5, 0, 0), (-5, 0, -5), (-5000, 0, MIN_PRIORITY), (-5000, BATCH_PRIORITY, BATCH_PRIORITY)],
)
def test_a_request_is_never_above_its_tenant(asked: int, of_tenant: int, priority: int) -> None:
    context = SimpleNamespace(priority=of_tenant, may_fall_back=True)
    RequestOptions(priority=asked).apply(cast(Any, context))
    assert context.priority == priority
