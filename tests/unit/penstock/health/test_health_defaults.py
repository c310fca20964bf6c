"""The defaults of health rules, as docs/endpoints.md and the agent's reference state them."""

from __future__ import annotations

from penstock.health.anycast_announcement import DampingRules
from penstock.health.endpoint_health import HealthThresholds
from penstock.health.health_check import ANSWERS_WHILE_BUSY, HealthCheck
from penstock.health.outlier_ejection import EjectionRules


def test_the_defaults_of_health_rules() -> None:
    assert HealthCheck() == HealthCheck("/health", 0.5, 2.0, 2, 2, (200,), "", "", 120.0)
    assert HealthCheck().thresholds == HealthThresholds() == HealthThresholds(2, 2)
    assert HealthCheck(busy_s=0.0) == ANSWERS_WHILE_BUSY
    assert DampingRules() == DampingRules(hold_s=2.0, max_hold_s=300.0, forget_s=60.0, max_misses=3)
    assert EjectionRules() == EjectionRules(
        consecutive_failures=3,
        failing_share=0.3,
        base_s=5.0,
        max_s=120.0,
        forgive_s=30.0,
        max_ejected_share=0.5,
        panic_share=0.3,
        suspect_after_s=10.0,
    )
