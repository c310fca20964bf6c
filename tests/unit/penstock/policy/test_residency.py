"""The mask: regions that rules allow and deny, and requests that are refused because their location is unknown."""

from __future__ import annotations

import pytest

from penstock.policy.geography import Location
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.residency import Mask, RequestFacts, cite, mask, regions_beside, residency_class
from penstock.routing.reasons import Reason, Refusal, Rejection
from tests.support.planet import EU_ONLY, policy

PERSONAL = RequestFacts("personal", "personal")
OPEN = RequestFacts("open", "open")


def permitted(verdict: Mask | Refusal) -> set[str]:
    assert isinstance(verdict, Mask)
    return set(verdict.permitted.regions)


def test_a_rule_that_does_not_match_narrows_nothing() -> None:
    assert permitted(mask(policy(), OPEN)) == {"eu-de", "eu-es", "us-east"}


def test_an_allow_rule_leaves_what_it_names_and_cites_itself_for_the_rest() -> None:
    verdict = mask(policy(), PERSONAL)
    assert permitted(verdict) == {"eu-de", "eu-es"}
    assert isinstance(verdict, Mask)
    (rejection,) = verdict.rejected
    assert (rejection.what, rejection.reason) == ("us-east", Reason.RESIDENCY_NOT_ALLOWED)
    assert "residency.yaml:3" in rejection.detail


def test_the_regions_that_serve_an_entry_are_those_of_its_own_clients() -> None:
    """A rule that depends on the client's location may not apply to a client."""
    everywhere = frozenset({"eu-de", "eu-es", "us-east"})
    of_germans = ResidencyRule("germans", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}))
    closed = ResidencyRule("closed", deny=frozenset({"us-east"}))
    no_spain = ResidencyRule("no-spain", deny=frozenset({"eu-es"}))
    assert regions_beside(policy(EU_ONLY, of_germans), "eu-de") == everywhere, "by the tenant that is not governed"
    assert regions_beside(policy(closed, of_germans), "eu-de") == {"eu-de", "eu-es"}
    assert regions_beside(policy(no_spain), "us-east") == {"eu-de", "us-east"}
    assert regions_beside(policy(no_spain), "eu-es") == set(), "a region that may serve no client"


def test_two_allow_rules_intersect() -> None:
    only_madrid = ResidencyRule("only-madrid", tenants=frozenset({"personal"}), allow=frozenset({"eu-es", "us-east"}))
    assert permitted(mask(policy(EU_ONLY, only_madrid), PERSONAL)) == {"eu-es"}


def test_deny_wins_in_either_order() -> None:
    deny = ResidencyRule("never-frankfurt", deny=frozenset({"eu-de"}))
    allow = ResidencyRule("frankfurt", allow=frozenset({"eu-de", "eu-es"}))
    assert permitted(mask(policy(deny, allow), OPEN)) == {"eu-es"}
    assert permitted(mask(policy(allow, deny), OPEN)) == {"eu-es"}


def test_each_rejection_states_whether_a_rule_denies_a_region_or_does_not_allow_it() -> None:
    deny = ResidencyRule("never-frankfurt", deny=frozenset({"eu-de"}))
    allow = ResidencyRule("eu", allow=frozenset({"eu-de", "eu-es"}))
    verdict = mask(policy(deny, allow), OPEN)
    assert isinstance(verdict, Mask)
    assert verdict.rejected == (
        Rejection("eu-de", Reason.RESIDENCY_DENIED, "never-frankfurt"),
        Rejection("us-east", Reason.RESIDENCY_NOT_ALLOWED, "eu"),
    )


def test_rules_that_leave_nothing_refuse_with_every_rejection() -> None:
    nowhere = ResidencyRule("nowhere", allow=frozenset({"us-east"}))
    verdict = mask(policy(EU_ONLY, nowhere), PERSONAL)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.NO_PERMITTED_REGION
    assert {rejection.what for rejection in verdict.rejected} == {"eu-de", "eu-es", "us-east"}


def test_a_rule_by_country_refuses_an_unknown_location() -> None:
    by_country = ResidencyRule("germans", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}))
    verdict = mask(policy(by_country), OPEN)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.LOCATION_UNKNOWN
    assert permitted(mask(policy(by_country), RequestFacts("open", "open", Location("DE")))) == {"eu-de"}
    assert len(permitted(mask(policy(by_country), RequestFacts("open", "open", Location("FR"))))) == 3


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        (Location("US", "CA"), {"eu-de"}),
        (Location("US", "NY"), {"eu-de", "eu-es", "us-east"}),
        (Location("FR"), {"eu-de"}),
        (Location("FR", "IDF"), {"eu-de"}),
        (Location("JP"), {"eu-de", "eu-es", "us-east"}),
        (Location("CA", "CA"), {"eu-de", "eu-es", "us-east"}),
        (Location("US"), None),
        (Location(), None),
    ],
)
def test_a_rule_by_subdivision(location: Location, expected: set[str] | None) -> None:
    rule = ResidencyRule(
        "californians",
        client_countries=frozenset({"FR"}),
        client_subdivisions=frozenset({"US-CA"}),
        allow=frozenset({"eu-de"}),
    )
    verdict = mask(policy(rule), RequestFacts("open", "open", location))
    if expected is None:
        assert isinstance(verdict, Refusal)
        assert verdict.reason is Reason.LOCATION_UNKNOWN
        unknown = "country" if location.country is None else "subdivision"
        assert verdict.detail == f"residency rule 'californians' depends on the client's {unknown}, which is not known"
    else:
        assert permitted(verdict) == expected


def test_a_rule_by_country_for_another_data_class_does_not_need_the_location() -> None:
    by_country = ResidencyRule(
        "germans", data_classes=frozenset({"personal"}), client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"})
    )
    assert len(permitted(mask(policy(by_country), OPEN))) == 3


def test_equal_sets_are_one_class_and_long_names_are_bounded() -> None:
    assert residency_class(frozenset({"b", "a"})) == residency_class(frozenset({"a", "b"}))
    assert residency_class({"a": 1, "b": 2}.keys()) == residency_class(frozenset({"a", "b"}))
    many = frozenset(f"region-{n}" for n in range(100))
    assert len(residency_class(many).name) < 40
    assert residency_class(many) != residency_class(many - {"region-1"})


def test_a_rule_is_cited_with_its_place_if_that_is_known() -> None:
    assert cite(ResidencyRule("eu", source="rules.yaml:3")) == "eu (rules.yaml:3)"
    assert cite(ResidencyRule("eu")) == "eu"
