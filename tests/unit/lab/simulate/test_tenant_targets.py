"""Tenants and priorities in simulations of engines: Penstock keeps its targets, and other queues do not."""

from __future__ import annotations

import pytest

from lab.simulate.contenders import PENSTOCK
from lab.simulate.targets.scenarios import Scale
from lab.simulate.targets.tenant_targets import EQUAL, FIFO, LONG, PRIORITIES, STRICT

SHORT = Scale(seeds=1, image_jobs=0, chat_s=0.0, step_s=0.0, tenant_s=16.0)
WHOLE = Scale(seeds=1, image_jobs=0, chat_s=0.0, step_s=0.0, tenant_s=42.0)


def test_a_quiet_tenant_is_served_beside_long_prompts() -> None:
    """A short run, whose engines all have long prompts when the quiet tenant begins."""
    ours, fifo = (LONG.measure(contender, SHORT, 1) for contender in (PENSTOCK, FIFO))
    assert ours["mean_delay_s"] < 0.5 * fifo["mean_delay_s"]


@pytest.mark.long
def test_tenants_and_priorities_keep_their_targets() -> None:
    assert EQUAL.measure(PENSTOCK, WHOLE, 1)["gap"] <= 0.06
    assert EQUAL.measure(FIFO, WHOLE, 1)["gap"] > 0.5
    long = LONG.measure(PENSTOCK, WHOLE, 1)
    assert long["worst_delay_s"] <= long["service_s"]
    assert PRIORITIES.measure(PENSTOCK, WHOLE, 1)["starvation_s"] < 12.0
    assert PRIORITIES.measure(STRICT, WHOLE, 1)["starvation_s"] > 30.0
