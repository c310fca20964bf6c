"""The demand of a live fleet has the rates that regions report, whatever else the policy would permit."""

from __future__ import annotations

import pytest

from penstock.fleet.snapshot import Demand
from penstock.what_if.assumed_demand import generated_demand, generated_fleet
from penstock.what_if.entry_regions import EntryResolver
from penstock.what_if.reported_demand import as_reported
from tests.unit.penstock.what_if.test_evaluation import PLANET, SMALL

GENERATED = generated_demand(PLANET, 100.0)
RESOLVER = EntryResolver(PLANET, generated_fleet((PLANET,), GENERATED), frozenset())
EU = frozenset({"eu-de", "eu-es"})


def reported(origin: str, regions: frozenset[str], rate: float, model: str = SMALL) -> Demand:
    return Demand(origin, model, "+".join(sorted(regions)), regions, rate)


def test_rates_are_those_of_each_entry_model_and_class() -> None:
    rows = [reported("eu-de", EU, 6.0), reported("us-east", frozenset(PLANET.regions), 2.0)]
    found: dict[tuple[str, str, str], float] = {}
    for group in as_reported(GENERATED, rows, RESOLVER):
        entered = RESOLVER.enter(group)
        assert isinstance(entered, tuple), "what is refused is not reported"
        assert group.origin in ("", entered[0]), "nor is what is sent to another entry"
        key = (entered[0], group.model, entered[1].name)
        found[key] = found.get(key, 0.0) + group.requests_per_s
    assert found == pytest.approx({(row.origin, row.model, row.residency): row.requests_per_s for row in rows})


def test_a_class_that_no_generated_request_has_keeps_its_model_and_entry() -> None:
    found = as_reported(GENERATED, [reported("eu-de", frozenset({"eu-de"}), 3.0)], RESOLVER)
    assert sum(group.requests_per_s for group in found) == pytest.approx(3.0)
    entries = {(entered[0], group.model) for group in found if isinstance(entered := RESOLVER.enter(group), tuple)}
    assert entries == {("eu-de", SMALL)}


def test_an_unknown_model_and_no_report_are_no_demand() -> None:
    assert as_reported(GENERATED, [reported("eu-de", EU, 3.0, model="other")], RESOLVER) == []
    assert as_reported(GENERATED, [], RESOLVER) == []
