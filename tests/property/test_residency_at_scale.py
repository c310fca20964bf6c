"""In random worlds, no request reaches a region that residency forbids (PENSTOCK_RESIDENCY_CASES requests).

`make verify-long` checks ten million.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from penstock.policy import residency
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts, residency_class
from penstock.routing import decision, region_selection
from penstock.routing.reasons import Refusal
from penstock.wire import route_context
from tests.support.examples import examples
from tests.support.residency_worlds import follow

CASES = int(os.environ.get("PENSTOCK_RESIDENCY_CASES", examples(240_000)))
SEED = 20_261
PLANTED_CASES = 40_000


@pytest.mark.timeout(max(300, CASES // 2_000))
def test_no_request_reaches_a_forbidden_region() -> None:
    tally = follow(CASES, SEED)
    print(msgspec.json.encode(tally).decode())
    assert tally.violations == []
    assert tally.cases >= CASES
    # The run covers each case: requests were served, retried, refused, and rejected by servers.
    assert tally.served > CASES / 5
    assert tally.retried > CASES / 20
    assert tally.refused_at_origin > CASES / 20
    assert tally.refused_by_server > CASES / 500
    assert tally.worlds >= CASES / 4_000


def _ignoring_denials(policy: Policy, facts: RequestFacts) -> Mask | Refusal:
    trusting = tuple(msgspec.structs.replace(rule, deny=frozenset()) for rule in policy.residency)
    return residency.mask(msgspec.structs.replace(policy, residency=trusting), facts)


def _guessing_locations(policy: Policy, facts: RequestFacts) -> Mask | Refusal:
    blind = tuple(rule for rule in policy.residency if residency.applies(rule, facts) is not None)
    return residency.mask(msgspec.structs.replace(policy, residency=blind), facts)


def _obeying_the_plan(policy: Policy, plan: Any, request: Any, *args: Any, **more: Any) -> Any:
    everywhere = msgspec.structs.replace(request, permitted=residency_class(frozenset(policy.regions)))
    return region_selection.region_options(policy, plan, everywhere, *args, **more)


DEFECTS: list[tuple[str, list[tuple[Any, str, Callable[..., Any]]]]] = [
    ("the mask ignores denials", [(decision, "mask", _ignoring_denials)]),
    ("the mask guesses locations", [(decision, "mask", _guessing_locations)]),
    ("servers ignore denials", [(route_context, "mask", _ignoring_denials)]),
    (
        "decisions ignore the mask",
        [(decision, "region_options", _obeying_the_plan), (decision, "within_mask", lambda decided: decided)],
    ),
]


@pytest.mark.parametrize(("what", "changes"), DEFECTS, ids=[row[0] for row in DEFECTS])
def test_a_planted_violation_is_found(what: str, changes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, defect in changes:
        monkeypatch.setattr(module, name, defect)
    assert follow(PLANTED_CASES, SEED).violations


def test_the_last_check_holds_if_region_selection_ignores_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision, "region_options", _obeying_the_plan)
    assert follow(PLANTED_CASES, SEED).violations == []
