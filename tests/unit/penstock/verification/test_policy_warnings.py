"""Exactly the maintenance windows that together empty a residency class, or a DNS name, are found."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.overrides.guard_rails import tenants_by_class
from penstock.overrides.maintenance import windows
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.coalescing import Coalescing
from penstock.policy.kinds.models import TOKEN_COST, UNSTATED_COST, Cost, CostUnit, Model, ModelVersions, Version
from penstock.policy.kinds.operations import Event, MaintenanceWindow, Recurrence
from penstock.policy.kinds.result_cache import ResultCache
from penstock.policy.kinds.tenants import Tier
from penstock.policy.policy import Policy
from penstock.policy.time_zone import ClockChange, TimeZone
from penstock.verification.policy_warnings import event_warnings, pattern_warnings, price_warnings, window_warnings
from penstock.verification.verify import verify
from tests.support.dns_names import a_name
from tests.support.planet import policy

DAY_S, HOUR_S = 86_400.0, 3600.0
MONDAY = 1_800_230_400.0


def test_patterns_that_match_nothing_are_found() -> None:
    models = {"chat-1": Model("chat-1", adapters=("lora-a*",))}
    versions = {"chat": ModelVersions("chat", (Version("chat-1", 100.0),))}
    tiers = {
        "good": Tier("good", "open", models=("chat", "*-1", "lora-ab", "lora-*"), routes=("openai-*",)),
        "bad": Tier("bad", "open", models=("chat", "chat-2*"), routes=("openai-chat", "openai-chat-completions")),
        "any": Tier("any", "open"),
    }
    caches = (ResultCache("kept", routes=("openai-embed*", "openai-embed"), tenants=("*",)),)
    shared = Coalescing(("openai-*", "gone"))
    bundle = msgspec.structs.replace(
        policy(), models=models, versions=versions, tiers=tiers, coalescing=shared, result_caches=caches
    )
    expected = ["tier bad: chat-2* in `models` matches none of the bundle"]
    expected += ["tier bad: openai-chat in `routes` matches none of the bundle"]
    expected += ["coalescing: gone in `routes` matches none of the bundle"]
    expected += ["result cache kept: openai-embed in `routes` matches none of the bundle"]
    assert list(pattern_warnings(bundle)) == expected
    assert set(expected) <= set(verify(bundle).warnings)


def window(name: str, region: str, starts_at: float, recurrence: Recurrence = Recurrence.NEVER) -> MaintenanceWindow:
    return MaintenanceWindow(name, frozenset({region}), MONDAY + starts_at, HOUR_S, recurrence, 600.0, f"{name}.yaml:1")


def under(*some: MaintenanceWindow) -> Policy:
    return msgspec.structs.replace(policy(), maintenance=some)


def warned(*some: MaintenanceWindow) -> list[str]:
    with_windows = under(*some)
    return list(window_warnings(with_windows, tenants_by_class(with_windows)))


@pytest.mark.parametrize(
    "others",
    [
        window("b", "eu-es", 0.5 * HOUR_S),
        window("b", "eu-es", -21 * DAY_S, Recurrence.DAILY),
        window("b", "eu-es", -70 * DAY_S, Recurrence.WEEKLY),
        window("b", "eu-es", HOUR_S + 599.0),
    ],
)
def test_windows_that_meet_are_found(others: MaintenanceWindow) -> None:
    (reported,) = warned(window("a", "eu-de", 0.0), others)
    assert "window a (a.yaml:1)" in reported
    assert "window b (b.yaml:1)" in reported
    assert "residency class eu-de+eu-es" in reported


@pytest.mark.parametrize(
    "others",
    [
        window("b", "us-east", 0.0),
        window("b", "eu-es", HOUR_S + 600.0),
        window("b", "eu-es", DAY_S, Recurrence.DAILY),
        window("b", "eu-es", -69 * DAY_S, Recurrence.WEEKLY),
    ],
)
def test_windows_that_do_not_meet_are_not(others: MaintenanceWindow) -> None:
    assert warned(window("a", "eu-de", 0.0), others) == []


def test_a_window_over_all_regions_of_a_dns_name_is_found() -> None:
    """The name resolves to none of them then, although its residency class has another region."""
    spain = a_name("spain", tenants=("personal",), covers=frozenset({"eu-es"}))
    named = msgspec.structs.replace(
        under(window("a", "eu-es", 0.0)), dns_names={name.name: name for name in (spain, a_name("open"))}
    )
    (reported,) = window_warnings(named, tenants_by_class(named))
    assert "empties all regions of DNS name spain.api.example.com" in reported
    assert "resolves to none" in reported


def test_recurring_windows_are_one_warning() -> None:
    reported = warned(window("a", "eu-de", 0.0, Recurrence.DAILY), window("b", "eu-es", 3 * DAY_S, Recurrence.WEEKLY))
    assert len(reported) == 1


def test_windows_of_two_zones_that_meet_only_while_one_of_them_has_put_its_clocks_forward_are_found() -> None:
    """For three weeks of a year, the second hour of one window is the first hour of the other."""
    zones = {
        "Europe/Madrid": TimeZone((ClockChange(0, 3600), ClockChange(int(MONDAY + 70 * DAY_S), 7200))),
        "America/New_York": TimeZone((ClockChange(0, -18_000), ClockChange(int(MONDAY + 49 * DAY_S), -14_400))),
    }
    in_madrid, in_new_york = (
        window("a", "eu-de", 0.0, Recurrence.WEEKLY),
        window("b", "eu-es", HOUR_S, Recurrence.WEEKLY),
    )
    in_two_zones = under(
        msgspec.structs.replace(in_madrid, time_zone="Europe/Madrid", lead_s=0.0),
        msgspec.structs.replace(in_new_york, time_zone="America/New_York", lead_s=0.0),
    )
    in_two_zones = msgspec.structs.replace(in_two_zones, time_zones=zones)
    (reported,) = window_warnings(in_two_zones, tenants_by_class(in_two_zones))
    assert "such as on 2027-03-08 at 00:00 UTC" in reported
    still = {name: TimeZone(zone.changes[:1]) for name, zone in zones.items()}
    assert not list(
        window_warnings(msgspec.structs.replace(in_two_zones, time_zones=still), tenants_by_class(in_two_zones))
    )


def test_verification_warns_of_them() -> None:
    reported = verify(under(window("a", "eu-de", 0.0), window("b", "eu-es", 0.0))).warnings
    assert any("window a" in warning for warning in reported)


def test_an_event_is_warned_of_once_it_has_ended() -> None:
    launch = Event("launch", MONDAY, HOUR_S, 3.0, source="e.yaml:1")
    announcing = msgspec.structs.replace(policy(), events=(launch, Event("later", MONDAY + DAY_S, HOUR_S, 3.0)))
    assert list(event_warnings(announcing, MONDAY + HOUR_S - 1.0)) == []
    assert list(event_warnings(announcing, MONDAY + HOUR_S)) == [
        "event launch (e.yaml:1) ended on 2027-01-18 at 01:00 UTC and has no effect; remove it or correct starts_at"
    ]


starts = st.integers(-40, 40).map(lambda quarters: quarters * 900.0)
some_windows = st.lists(
    st.builds(
        lambda region, at, days, recurrence: window(f"{region}-{at}-{days}", region, at + days * DAY_S, recurrence),
        st.sampled_from(("eu-de", "eu-es")),
        starts,
        st.integers(-10, 10),
        st.sampled_from(list(Recurrence)),
    ),
    max_size=4,
    unique_by=lambda maintenance: maintenance.name,
)


@given(some_windows)
def test_there_is_a_warning_exactly_if_there_is_a_moment_without_a_region(some: list[MaintenanceWindow]) -> None:
    with_windows = under(*some)
    # The last weekly windows begin in ten days and ten hours, and have overlapped all others a week later.
    moments = [MONDAY - 12 * DAY_S + quarter * 300.0 for quarter in range(32 * 288)]
    emptied = any(
        {drain.region for drain in windows(with_windows, at) if drain.holds(at)} >= {"eu-de", "eu-es"} for at in moments
    )
    reported = [warning for warning in warned(*some) if "class eu-de+eu-es" in warning]
    assert bool(reported) == emptied


def test_budgets_of_money_without_prices_and_models_without_a_price_are_found() -> None:
    limit = Budget(BudgetUnit.MONEY_PER_MONTH, 50.0)
    limited = msgspec.structs.replace(
        policy(),
        models={"chat": Model("chat"), "free": Model("free")},
        tiers={"paid": Tier("paid", "open", budgets=(limit,)), "free": Tier("free", "open")},
    )
    assert [*price_warnings(limited)] == ["money_per_month of paid/* limits nothing, since the policy has no prices"]
    newest = Prices("2028", 2.0, "EUR", (ModelPrice("ch*", per_request=0.1),))
    lists = (newest, Prices("2027", 1.0, "EUR", (ModelPrice("*", per_request=0.1),)))
    assert [*price_warnings(msgspec.structs.replace(limited, prices=lists))] == [
        "prices 2028 do not name free: their requests cost nothing"
    ]


def test_prices_of_units_that_requests_do_not_have_are_found() -> None:
    pixels = Cost(CostUnit.MEGAPIXEL_STEP, output_unit_s=0.1)
    models = {name: Model(name, cost=cost) for name, cost in {"a": TOKEN_COST, "b": UNSTATED_COST, "c": pixels}.items()}
    prices = Prices("2027", 0.0, "EUR", (ModelPrice("*", per_unit=0.1),))
    of_requests = msgspec.structs.replace(prices, name="2028", models=(ModelPrice("*", per_request=0.1),))
    priced = msgspec.structs.replace(policy(), models=models, prices=(prices, of_requests))
    found = [*price_warnings(priced)]
    assert [warning.partition(",")[0] for warning in found] == [
        "prices 2027: per_unit has no effect on texts of model a",
        "prices 2027: per_unit has no effect on texts of model b",
    ]
