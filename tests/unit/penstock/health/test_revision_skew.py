"""Endpoints that differ from policy or most of their siblings, and regions that differ from others, are found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from penstock.fleet.region_skew import region_skews
from penstock.fleet.reported_endpoints import ReportedEndpoint
from penstock.health.engines.engine_facts import ServedModel
from penstock.health.engines.model_revision import same_spelling
from penstock.health.version_skew import Serving, SkewAgainst, skews
from penstock.policy.kinds.models import Model
from tests.support.reports import endpoint


def of(name: str, revision: str = "", version: str = "", kind: str = "vllm") -> Serving:
    return Serving(name, kind, version, revision)


def against(*pool: Serving, expected: str | None = None) -> dict[str, SkewAgainst]:
    return {name: skew.against for name, skew in skews(pool, expected).items()}


def test_policy_decides_where_it_expects_a_revision() -> None:
    pool = (of("a", "/m/llama-v2"), of("b", "/m/llama-v1"), of("c", "/m/llama-v1"), of("d"))
    assert against(*pool, expected="/m/llama-v2") == {"b": SkewAgainst.POLICY, "c": SkewAgainst.POLICY}
    assert against(*pool, expected="/m/llama-*") == {}
    detail = skews(pool, "/m/llama-v2")["b"].detail
    assert detail == "serves /m/llama-v1, and policy expects /m/llama-v2"


def test_without_an_expectation_the_majority_decides_and_without_one_all_differ() -> None:
    assert against(of("a", "1"), of("b", "1"), of("c", "2"), of("d")) == {"c": SkewAgainst.SIBLINGS}
    assert skews((of("a", "1"), of("b", "1"), of("c", "2")), None)["c"].detail == "serves 2, and its siblings 1"
    assert against(of("a", "1"), of("b", "2")) == dict.fromkeys("ab", SkewAgainst.SIBLINGS)
    assert against(of("a", "1"), of("b")) == {}


def test_engine_versions_are_compared_within_a_kind_of_engine() -> None:
    pool = (of("a", "1", "0.9"), of("b", "1", "0.9"), of("c", "1", "0.8"), of("d", "1", "2.0", "sglang"))
    assert against(*pool) == {"c": SkewAgainst.ENGINE}
    assert skews(pool, None)["c"].detail == "runs vllm 0.8, and its siblings 0.9"
    assert against(*pool, expected="2") == dict.fromkeys("abcd", SkewAgainst.POLICY), "the gravest counts"


FULL = "0E9E39F249a16976918f6564b8830bc894c89659"
OTHER = "11111111aaaaaaaa11111111aaaaaaaa11111111"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"org/m@{FULL}", f"org/m@{FULL.lower()}"),
        (f"org/m@{FULL}", "org/m@0e9e39f"),
        (f"org/m@{FULL}", FULL),
        (f"org/m@{FULL}", f"/root/.cache/huggingface/hub/models--org--m/snapshots/{FULL.lower()}"),
        ("org/m@refs/pr/1", "org/m@refs%2Fpr%2F1"),
        ("org/m@refs/pr/1", "org/m@refs%2fpr%2f1"),
        ("org/m@refs/pr/1", "org/m@pr/1"),
        ("org/m@main", "org/m@refs/heads/main"),
        ("org/m@v1.0", "https://huggingface.co/org/m@refs/tags/v1.0"),
        (f"sha256:{FULL}", FULL),
        ("/models/llama", "/models/llama/"),
        ("org/m", f"org/m@{FULL}"),
        ("org/m@main", f"org/m@{FULL}"),
        # A number of 32 digits or more is a hash.
        ("org/m@" + "1" * 32, "org/m@" + "1" * 33),
    ],
)
def test_spelling_is_no_difference(one: str, other: str) -> None:
    assert against(of("a", one), of("b", other)) == {}
    assert region_skews(endpoints_of(a=[one], b=[other]), {"m": Model("m")}) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (f"org/m@{FULL}", f"org/m@{OTHER}"),
        (f"org/m@{FULL}", "org/m@0e9e39e"),
        ("org/m@main", "org/m@refs/pr/1"),
        ("org/m", f"fork/m@{FULL}"),
        ("org/M", "org/m"),
        ("org/m@1000001", "org/m@10000012"),
        ("org/m@" + "1" * 30, "org/m@" + "1" * 31),
        ("/models/llama-v1", "/models/llama-v2"),
        ("/", "/models"),
    ],
)
def test_other_revisions_differ(one: str, other: str) -> None:
    assert against(of("a", one), of("b", other)) == dict.fromkeys("ab", SkewAgainst.SIBLINGS)
    assert region_skews(endpoints_of(a=[one], b=[other]), {"m": Model("m")}).keys() == {("a", "m"), ("b", "m")}


def test_what_may_be_any_revision_hides_no_difference() -> None:
    pool = [
        of("a", f"org/m@{FULL}"),
        of("b", f"org/m@{OTHER}"),
        of("c", "org/m"),
        of("d", "org/m"),
        of("e", "org/m@main"),
    ]
    assert against(*pool) == dict.fromkeys("ab", SkewAgainst.SIBLINGS)
    assert against(*pool, of("f", FULL[:9])) == {"b": SkewAgainst.SIBLINGS}


def test_a_short_hash_of_several_revisions_is_a_revision_of_its_own() -> None:
    pool = [of(name, f"org/m@{at}") for name, at in (("a", "abcdef0123"), ("b", "abcdef0"), ("c", "abcdef0456"))]
    assert against(*pool) == dict.fromkeys("abc", SkewAgainst.SIBLINGS)


@pytest.mark.parametrize(
    ("expected", "reported", "is_met"),
    [
        (FULL, f"org/m@{FULL.lower()}", True),
        ("org/m@0e9e39f", f"org/m@{FULL}", True),
        (f"org/m@{FULL}", "org/m@0e9e39f", True),
        ("org/m@*", f"/hub/models--org--m/snapshots/{FULL}", True),
        ("org/m@refs/pr/1", "org/m@pr/1", True),
        (f"fork/m@{FULL}", f"org/m@{FULL}", False),
        (f"org/m@{FULL}", "org/m", False),
        (f"org/m@{FULL}", "org/m@main", False),
        ("org/m", f"org/m@{FULL}", False),
        (FULL, f"org/m@{OTHER}", False),
    ],
)
def test_policy_expects_a_revision_in_any_spelling(expected: str, reported: str, is_met: bool) -> None:
    assert (against(of("a", reported), expected=expected) == {}) is is_met


@given(st.lists(st.text("abcdef0123456789", min_size=7, max_size=12), max_size=12))
def test_each_hash_is_spelled_as_one_that_begins_with_it(hashes: list[str]) -> None:
    spelled = same_spelling([f"m@{each}" for each in hashes])
    for text, longest in spelled.items():
        assert longest.startswith(text)
        assert spelled[longest] == longest


def in_regions(expected: str = "", **revisions: str) -> dict[tuple[str, str], str]:
    """What differs between regions, by the revisions of the endpoints of each, one letter an endpoint."""
    models = {"m": replace(Model("m"), expected_revision=expected) if expected else Model("m")}
    return region_skews(endpoints_of(**{name: list(each.replace("-", "")) for name, each in revisions.items()}), models)


def endpoints_of(**revisions: list[str]) -> list[ReportedEndpoint]:
    """An endpoint for each revision, by region."""
    return [
        ReportedEndpoint(
            region, "1", replace(endpoint(), served=(ServedModel("m", each), ServedModel("lora", region))), 0.0
        )
        for region, of_region in revisions.items()
        for each in of_region
    ]


def test_regions_are_compared_by_what_most_of_their_endpoints_serve() -> None:
    assert in_regions(a="11", b="122", c="11", d="-") == {("b", "m"): "the region serves 2, and other regions 1"}
    assert in_regions(a="112", b="1", c="-") == {}
    assert in_regions(a="1", b="2").keys() == {("a", "m"), ("b", "m")}, "without a majority, both"
    assert in_regions("1", a="1", b="2") == {}, "agents compare it with the policy"
