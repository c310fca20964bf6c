"""The models that lose their last endpoint: by the reports, and by drains that the reports do not show yet."""

from __future__ import annotations

from penstock.fleet.endpoint_report import EndpointCondition, EndpointReport
from penstock.overrides.last_endpoints import last_of
from penstock.overrides.overrides import Override
from tests.support.override_builders import drain, drain_endpoint

READY, EJECTED = EndpointCondition.READY, EndpointCondition.EJECTED


def reports(**conditions: EndpointCondition) -> list[EndpointReport]:
    return [EndpointReport(name, "h:1", ("m",), "", "", condition, 8, 0) for name, condition in conditions.items()]


def lost(*standing: Override, wanted: Override | None = None, **conditions: EndpointCondition) -> tuple[str, ...]:
    return last_of(wanted or drain_endpoint("eu-de", "b"), reports(**conditions or {"a": READY, "b": READY}), standing)


def test_only_endpoints_that_accept_requests_count() -> None:
    assert lost() == ()
    assert lost(a=EJECTED, b=READY) == ("m",)
    assert lost(a=EJECTED, b=EJECTED) == ()


def test_two_endpoints_that_are_drained_shortly_after_each_other_are_not_taken_for_two_that_remain() -> None:
    assert lost(drain_endpoint("eu-de", "a")) == ("m",)
    assert lost(drain_endpoint("eu-de", "b")) == (), "its own earlier drain"
    assert lost(drain_endpoint("eu-es", "a"), drain("eu-de")) == ()


def test_drains_at_different_times_do_not_add_up() -> None:
    first = drain_endpoint("eu-de", "a", expires_at=100.0)
    assert lost(first, wanted=drain_endpoint("eu-de", "b", begins_at=100.0)) == ()
    assert lost(first, wanted=drain_endpoint("eu-de", "b", begins_at=50.0)) == ("m",)
