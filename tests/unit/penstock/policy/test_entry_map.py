"""Entry maps: the most specific map for a client applies, and orders the permitted regions only."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.entry_map import mapped, order_by_entry_map
from penstock.policy.geography import Location
from penstock.policy.kinds.regions import EntryMap
from penstock.policy.residency import RequestFacts
from penstock.routing.decision import authorize_at_origin
from penstock.routing.reasons import Refusal
from tests.support.planet import MODEL, policy, with_bias

MAPS = (
    EntryMap("all-of-us", frozenset({"US", "CA"}), frozenset(), ("us-east",)),
    EntryMap("californians", frozenset(), frozenset({"US-CA"}), ("eu-es", "us-east")),
    EntryMap("more-of-us", frozenset({"US"}), frozenset(), ("eu-de",)),
)
MAPPED = msgspec.structs.replace(policy(), entry_maps=MAPS)


@pytest.mark.parametrize(
    ("location", "regions"),
    [
        (Location("US", "CA"), ("eu-es", "us-east")),
        (Location("US", "NY"), ("us-east",)),
        (Location("US"), ("us-east",)),
        (Location("CA", "CA"), ("us-east",)),
        (Location("DE"), ()),
        (Location(), ()),
    ],
)
def test_the_closest_map_counts(location: Location, regions: tuple[str, ...]) -> None:
    assert mapped(MAPPED, location) == regions


def test_what_is_not_mapped_follows_in_its_order() -> None:
    assert order_by_entry_map(MAPPED, Location("US", "CA"), ("eu-de", "us-east")) == ("us-east", "eu-de")
    assert order_by_entry_map(MAPPED, Location("DE"), ("eu-de", "us-east")) == ("eu-de", "us-east")


def test_a_client_at_the_wrong_door_is_sent_by_its_map_but_only_where_it_may_be() -> None:
    californian = RequestFacts("personal", "personal", Location("US", "CA"))
    answer = authorize_at_origin(MAPPED, "us-east", MODEL, californian)
    assert isinstance(answer, Refusal)
    assert answer.try_regions == ("eu-es", "eu-de")
    unmapped = authorize_at_origin(policy(), "us-east", MODEL, californian)
    assert isinstance(unmapped, Refusal)
    assert set(unmapped.try_regions) == {"eu-es", "eu-de"}


def test_a_bias_counts_for_every_origin_and_measurements_go_before_geography() -> None:
    plain = msgspec.structs.replace(policy(), rtt_ms={"us-east": {"eu-es": 87.0, "eu-de": 98.0}})
    both = frozenset({"eu-de", "eu-es", "us-east"})
    assert plain.nearest_first("us-east", both) == ("us-east", "eu-es", "eu-de")
    biased = with_bias(plain, {"us-east": 90.0, "eu-es": 12.0})
    assert biased.nearest_first("us-east", both) == ("us-east", "eu-de", "eu-es")
    far = with_bias(plain, {"us-east": 90.0})
    assert far.nearest_first("us-east", both) == ("eu-es", "us-east", "eu-de")
    assert far.round_trip_ms("us-east", "us-east") == 0.0
    detour = msgspec.structs.replace(plain, rtt_ms={"us-east": {"eu-es": 500.0}})
    assert detour.nearest_first("us-east", both) == ("us-east", "eu-de", "eu-es")
    assert policy().nearest_first("us-east", both) == ("us-east", "eu-es", "eu-de")


@given(
    st.dictionaries(st.sampled_from(["eu-de", "eu-es", "us-east"]), st.sampled_from([1.0, 50.0, 90.0])),
    st.dictionaries(st.sampled_from(["eu-de", "eu-es", "us-east"]), st.sampled_from([0.0, 30.0])),
    st.frozensets(st.sampled_from(["eu-de", "eu-es", "us-east"])),
)
def test_nearest_is_by_distance_then_name_for_any_measurements(
    row: dict[str, float], bias: dict[str, float], regions: frozenset[str]
) -> None:
    measured = msgspec.structs.replace(with_bias(policy(), bias), rtt_ms={"eu-de": row})
    ordered = measured.nearest_first("eu-de", regions)
    assert sorted(ordered) == sorted(regions)
    places = [(measured.distance_ms("eu-de", name), name) for name in ordered]
    assert places == sorted(places)
