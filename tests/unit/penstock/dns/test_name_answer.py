"""Regions that names resolve to: strategy, shares and health, within the permitted regions."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from penstock.dns.name_answer import EntryState, EvenDraws, NameAnswer, NameServerView, Question, answer_name
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, Closed, FailoverTable
from penstock.policy.geography import Location
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.kinds.regions import EntryMap
from penstock.routing.reasons import Reason
from tests.support import planet
from tests.support.dns_names import EU, a_name, all_live, dns_policy

BOSTON = Location("US", "MA", 42.36, -71.06)
LISBON = Location("PT", "11", 38.72, -9.14)
IN_BOSTON = Question(BOSTON, BOSTON)

OPEN = a_name("open", tenants=("open",))
NEAREST = a_name("near", tenants=("open",), strategy=DnsStrategy.NEAREST)
FIRST = a_name("first", tenants=("open",), strategy=DnsStrategy.FAILOVER, failover_order=("us-east", "eu-de", "eu-es"))
PERSONAL = a_name("eu", tenants=("personal",))

OF_US = planet.plan("us-east", "eu-de+eu-es+us-east", us_east=0.8, eu_de=0.2)


NOWHERE_KNOWN = Question()


def ask(name: DnsName, question: Question = NOWHERE_KNOWN, *plans, policy=None, **states: RegionState) -> NameAnswer:
    by_origin = {plan.region: plan for plan in plans}
    return answer_name(policy or dns_policy(), name, question, NameServerView(all_live(**states), by_origin))


def test_shares_of_the_nearest_origin_are_the_weights() -> None:
    answer = ask(OPEN, IN_BOSTON, OF_US, planet.plan("eu-es", "eu-de+eu-es+us-east", eu_es=1.0))
    assert answer.shares == pytest.approx({"us-east": 0.8, "eu-de": 0.2})
    rng = Random(4)
    drawn = Counter(answer.draw(rng) for _ in range(10_000))
    assert abs(drawn["us-east"] / 10_000 - 0.8) < 0.03
    assert drawn.keys() == {"us-east", "eu-de"}


@pytest.mark.parametrize("seed", range(20))
def test_few_answers_in_a_row_have_the_shares(seed: int) -> None:
    """PowerDNS caches an answer for a second: 100 answers of a name are those of 100 seconds."""
    answer, draws = ask(OPEN, IN_BOSTON, OF_US), EvenDraws(Random(seed))
    drawn = [answer.draw(draws) for _ in range(10_000)]
    counts = [drawn[start : start + 100].count("us-east") for start in range(0, 10_000, 100)]
    assert all(75 <= count <= 85 for count in counts), "independent draws exceed this in every sixth hundred"
    assert sum(77 <= count <= 83 for count in counts) >= 90
    assert abs(sum(counts) / 10_000 - 0.8) < 0.01
    # Who asks for each 89th answer, a Fibonacci number, does not always receive the same region.
    assert set(drawn[::89]) == {"us-east", "eu-de"}


def test_without_a_place_every_permitted_region_is_the_origin_equally() -> None:
    of_germany = planet.plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)
    of_spain = planet.plan("eu-es", "eu-de+eu-es+us-east", eu_de=1.0)
    answer = ask(OPEN, Question(), OF_US, of_germany, of_spain)
    assert answer.shares == pytest.approx({"us-east": 0.8 / 3, "eu-de": 2.2 / 3})
    twice = replace(of_germany, classes=of_germany.classes * 2)
    assert ask(OPEN, Question(), OF_US, twice, of_spain).shares == pytest.approx(answer.shares)


def test_without_a_place_an_origin_without_demand_serves_its_own_clients() -> None:
    """Of a fleet without a GeoIP database, the first region by name would have all clients otherwise, and forever."""
    for name in (OPEN, NEAREST):
        assert ask(name).shares == pytest.approx(dict.fromkeys(("eu-de", "eu-es", "us-east"), 1 / 3))
        near_failed = ask(name, eu_es=RegionState.FAILED)
        assert near_failed.shares == pytest.approx({"eu-de": 2 / 3, "us-east": 1 / 3}), "those of Spain go to Germany"
    assert ask(OPEN, Question(), OF_US).shares == pytest.approx({"eu-de": 1.2 / 3, "eu-es": 1 / 3, "us-east": 0.8 / 3})


def test_the_shares_are_those_of_the_class_of_the_name_if_the_plan_has_it() -> None:
    other = planet.plan("us-east", "eu-de+us-east", eu_es=1.0)
    both = replace(OF_US, classes=(*other.classes, *OF_US.classes))
    assert ask(OPEN, IN_BOSTON, both).shares == pytest.approx({"us-east": 0.8, "eu-de": 0.2})
    assert ask(OPEN, IN_BOSTON, other).shares == {"eu-es": 1.0}


def test_without_a_plan_the_nearest_region_is_the_answer() -> None:
    assert ask(OPEN, IN_BOSTON).shares == {"us-east": 1.0}
    assert ask(OPEN, Question(LISBON, LISBON)).shares == {"eu-es": 1.0}


def test_a_share_of_a_forbidden_region_is_ignored() -> None:
    tempting = planet.plan("eu-de", "eu-de+eu-es", us_east=0.9, eu_es=0.1)
    answer = ask(PERSONAL, Question(LISBON, LISBON), tempting, planet.plan("eu-es", "eu-de+eu-es", us_east=1.0))
    assert answer.shares == {"eu-es": 1.0}
    assert answer.permitted == EU


@pytest.mark.parametrize("state", [RegionState.FAILED, RegionState.DRAINING, RegionState.UNKNOWN])
@pytest.mark.parametrize("name", [OPEN, NEAREST, FIRST])
def test_a_region_that_is_not_live_is_never_answered(name: DnsName, state: RegionState) -> None:
    answer = ask(name, IN_BOSTON, OF_US, us_east=state)
    assert answer.shares == {"eu-de": 1.0} or name is NEAREST
    assert "us-east" not in answer.shares
    assert "us-east" in {rejection.what for rejection in answer.rejected}


def test_the_failover_table_of_the_plan_applies() -> None:
    table = FailoverTable("us-east", (Arc("eu-es", 1.0, ArcReason.FAILOVER),))
    entry = replace(OF_US.classes[0], failover_tables=(table,))
    plan = replace(OF_US, classes=(entry,))
    answer = ask(OPEN, IN_BOSTON, plan, us_east=RegionState.FAILED)
    assert answer.shares == pytest.approx({"eu-es": 0.8, "eu-de": 0.2})


def test_the_primary_is_answered_alone_while_it_lives() -> None:
    assert ask(FIRST).shares == {"us-east": 1.0}
    assert ask(FIRST, us_east=RegionState.SUSPECT).shares == {"us-east": 1.0}
    assert ask(FIRST, us_east=RegionState.FAILED).shares == {"eu-de": 1.0}
    assert ask(FIRST, us_east=RegionState.FAILED, eu_de=RegionState.FAILED).shares == {"eu-es": 1.0}


def test_a_region_without_a_ready_model_of_the_name_is_not_answered() -> None:
    policy = dns_policy()
    states = all_live() | {"us-east": EntryState(RegionState.HEALTHY, frozenset({"another"}))}
    answer = answer_name(policy, FIRST, Question(), NameServerView(states, {}))
    assert answer.shares == {"eu-de": 1.0}
    assert answer.rejected[0].reason is Reason.MODEL_NOT_READY


def test_a_region_without_endpoints_is_answered_while_it_accepts_clients() -> None:
    states = all_live() | {"us-east": EntryState(RegionState.HEALTHY, accepts_clients=True)}
    assert answer_name(dns_policy(), FIRST, Question(), NameServerView(states, {})).shares == {"us-east": 1.0}


def test_a_region_without_endpoints_is_answered_only_while_a_permitted_region_serves() -> None:
    """What it forwards, no forbidden region may process."""
    entry, lost = EntryState(RegionState.HEALTHY, accepts_clients=True), EntryState(RegionState.FAILED)
    ready, policy = EntryState(RegionState.HEALTHY, frozenset({planet.MODEL})), dns_policy()

    def regions(name: DnsName, **others: EntryState) -> set[str]:
        states = {"eu-es": entry} | {region.replace("_", "-"): state for region, state in others.items()}
        return answer_name(policy, name, Question(), NameServerView(states, {})).shares.keys()

    assert regions(PERSONAL, eu_de=lost, us_east=ready) == set()
    in_spain = replace(PERSONAL, covers=frozenset({"eu-es"}))
    assert regions(in_spain, eu_de=ready) == {"eu-es"}, "the region that serves need not be one of the name"
    assert regions(in_spain, us_east=ready) == set()
    assert regions(replace(in_spain, tenants=("personal", "open")), us_east=ready) == {"eu-es"}, (
        "for one of the tenants"
    )
    assert regions(in_spain, eu_de=EntryState(RegionState.HEALTHY, asleep=frozenset({planet.MODEL}))) == {"eu-es"}
    assert regions(in_spain, eu_es=replace(entry, burst=frozenset({planet.MODEL}))) == {"eu-es"}, "by its own"


def test_a_region_whose_models_sleep_is_answered_if_none_is_ready() -> None:
    """No request would wake them otherwise."""
    asleep = EntryState(RegionState.HEALTHY, asleep=frozenset({planet.MODEL}))
    policy = dns_policy()
    on_demand = replace(policy, models={planet.MODEL: Model(planet.MODEL, on_demand=OnDemand(WakeMethod.VLLM))})
    everywhere = NameServerView(dict.fromkeys(policy.regions, asleep), {})
    answer = answer_name(on_demand, FIRST, Question(), everywhere)
    assert (answer.shares, answer.live, answer.rejected) == ({"us-east": 1.0}, 3, ())
    # A model that is not loaded on demand has failed.
    assert answer_name(policy, FIRST, Question(), everywhere).shares == {}
    awake = answer_name(on_demand, FIRST, Question(), NameServerView(all_live() | {"us-east": asleep}, {}))
    assert awake.shares == {"eu-de": 1.0}
    assert [each.reason for each in awake.rejected] == [Reason.MODEL_NOT_READY]
    drained = replace(OF_US, closed=(Closed("us-east", planet.MODEL, last_resort=True),))
    closed = answer_name(on_demand, FIRST, Question(), NameServerView(everywhere.states, {"us-east": drained}))
    assert closed.shares == {"eu-de": 1.0}
    failed = NameServerView(everywhere.states | {"us-east": replace(asleep, state=RegionState.FAILED)}, {})
    assert answer_name(on_demand, FIRST, Question(), failed).shares == {"eu-de": 1.0}


def test_a_drained_region_is_not_answered() -> None:
    drained = replace(OF_US, closed=(Closed("us-east", planet.MODEL, last_resort=True),))
    answer = ask(FIRST, Question(), drained)
    assert answer.shares == {"eu-de": 1.0}
    assert [(rejection.what, rejection.reason) for rejection in answer.rejected] == [
        ("us-east", Reason.REGION_DRAINING)
    ]


def test_a_region_that_is_closed_to_the_requests_of_another_origin_stays_an_entry() -> None:
    """Whichever plan is the newest: those of one tick have the same generation."""
    closed = (Closed("us-east", planet.MODEL, last_resort=True),)
    of_spain = planet.plan("eu-es", "eu-de+eu-es+us-east", us_east=1.0)
    for generation in (0, 1, 2):
        plan = replace(of_spain, closed=closed, generation=generation)
        assert ask(FIRST, Question(), OF_US, plan).shares == {"us-east": 1.0}
        assert ask(FIRST, Question(), plan, OF_US).shares == {"us-east": 1.0}


def test_a_region_whose_only_ready_model_is_drained_is_not_answered() -> None:
    drained = replace(OF_US, closed=(Closed("us-east", planet.MODEL, last_resort=True),))
    policy = dns_policy()
    policy = replace(policy, models={**policy.models, "other": Model("other")})
    assert ask(FIRST, Question(), drained, policy=policy).shares == {"eu-de": 1.0}
    both = {"us-east": EntryState(RegionState.HEALTHY, frozenset({planet.MODEL, "other"}))}
    view = NameServerView(all_live() | both, {"us-east": drained})
    assert answer_name(policy, FIRST, Question(), view).shares == {"us-east": 1.0}


def test_a_recovering_region_has_its_ramp_s_part() -> None:
    states = all_live() | {"us-east": EntryState(RegionState.RECOVERING, frozenset({planet.MODEL}), weight=0.1)}
    answer = answer_name(dns_policy(), OPEN, IN_BOSTON, NameServerView(states, {"us-east": OF_US}))
    assert answer.shares["us-east"] == pytest.approx(0.1)


def test_a_type_of_addresses_that_a_region_lacks_is_of_another_by_the_shares() -> None:
    """IPv4 alone in one region, IPv6 alone in another, both in the third: each client of either reaches one."""
    addresses = {"us-east": ("198.51.100.30",), "eu-de": ("2001:db8::10",), "eu-es": ("192.0.2.20", "2001:db8::20")}
    policy = dns_policy()
    regions = {
        name: replace(region, entry=RegionEntry(addresses=addresses[name])) for name, region in policy.regions.items()
    }
    policy = replace(policy, regions=regions)
    plan = planet.plan("us-east", "eu-de+eu-es+us-east", us_east=0.4, eu_de=0.4, eu_es=0.2)
    answer, rng = ask(OPEN, IN_BOSTON, plan, policy=policy), Random(5)
    found = Counter[str]()
    for _ in range(10_000):
        records = answer.records(policy, OPEN, answer.draw(rng) or "", rng)
        assert sorted(record.kind for record in records) == ["A", "AAAA"]
        found.update(record.content for record in records)
    for address, share in (
        ("198.51.100.30", 2 / 3),
        ("192.0.2.20", 1 / 3),
        ("2001:db8::10", 2 / 3),
        ("2001:db8::20", 1 / 3),
    ):
        assert found[address] / 10_000 == pytest.approx(share, abs=0.03)
    lost = ask(OPEN, IN_BOSTON, plan, policy=policy, eu_de=RegionState.FAILED, eu_es=RegionState.FAILED)
    assert [each.content for each in lost.records(policy, OPEN, "us-east", rng)] == ["198.51.100.30"], "no IPv6 is left"
    records = ask(NEAREST, IN_BOSTON, policy=policy).records(policy, NEAREST, "us-east", rng)
    assert [each.content for each in records] == ["198.51.100.30", "2001:db8::20"], "the nearest that has the type"


def test_a_failover_order_is_answered_by_the_primary_alone_whatever_addresses_it_has() -> None:
    answer = ask(FIRST)
    assert [each.content for each in answer.records(dns_policy(), FIRST, "us-east", Random(1))] == ["198.51.100.30"]


def test_entry_maps_decide_as_in_steering() -> None:
    mapped = EntryMap("us", frozenset({"US"}), frozenset(), ("eu-es",))
    policy = replace(dns_policy(), entry_maps=(mapped,))
    assert ask(NEAREST, IN_BOSTON, policy=policy).shares == {"eu-es": 1.0}


def test_no_live_region_is_no_answer() -> None:
    lost = {"eu_de": RegionState.FAILED, "eu_es": RegionState.FAILED}
    answer = ask(PERSONAL, Question(), **lost)
    assert answer.shares == {}
    assert answer.draw(Random(1)) is None
