"""Endpoints that the router offers to no request: those that it tried, and trials for requests that failed before."""

from types import SimpleNamespace
from typing import Any

import pytest

from regional_agent.routing.local_targets import excluded_endpoints


def pool(**views: str) -> Any:
    """Endpoints by name, each `ready`, `trial` or `down`."""
    shown = [SimpleNamespace(name=name, ready=state != "down", trial=state == "trial") for name, state in views.items()]
    return SimpleNamespace(views=shown, renaming=frozenset(), lacking={}, beside=lambda names: names)


def context(broken: int, tried: set[str]) -> Any:
    estimate = SimpleNamespace(adapter="")
    return SimpleNamespace(
        tried_endpoints=frozenset(tried), estimate=estimate, subset=None, extends_text=False, broken=broken
    )


@pytest.mark.parametrize(
    ("broken", "tried", "excluded"),
    [
        (0, set(), set()),
        (1, {"a"}, {"a", "b"}),
        (1, {"a", "c"}, {"a", "c"}),
    ],
)
def test_a_request_that_was_moved_is_no_trial_request_unless_nothing_else_is_ready(
    broken: int, tried: set[str], excluded: set[str]
) -> None:
    assert excluded_endpoints(pool(a="ready", b="trial", c="ready"), context(broken, tried)) == excluded


@pytest.mark.parametrize(("state", "excluded"), [("ready", {"a", "b"}), ("down", {"a"})])
def test_a_request_that_was_moved_leaves_the_host_unless_nothing_else_is_ready(state: str, excluded: set[str]) -> None:
    of_two_hosts = pool(a="ready", b="ready", elsewhere=state)
    of_two_hosts.beside = lambda names: names | {"b"} if "a" in names else names
    assert excluded_endpoints(of_two_hosts, context(1, {"a"})) == excluded
