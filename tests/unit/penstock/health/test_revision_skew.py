"""Endpoints that differ from policy or most of their siblings, and regions that differ from others, are found."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.fleet.endpoint_view import ReportedEndpoint
from penstock.fleet.region_skew import region_skews
from penstock.health.engine_facts import ServedModel
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


def in_regions(expected: str = "", **revisions: str) -> dict[tuple[str, str], str]:
    """What differs between regions, by the revisions of the endpoints of each, one letter an endpoint."""
    models = {"m": replace(Model("m"), expected_revision=expected) if expected else Model("m")}
    served = [
        ReportedEndpoint(
            region, "1", replace(endpoint(), served=(ServedModel("m", each), ServedModel("lora", region))), 0.0
        )
        for region, each_revision in revisions.items()
        for each in each_revision.replace("-", "")
    ]
    return region_skews(served, models)


def test_regions_are_compared_by_what_most_of_their_endpoints_serve() -> None:
    assert in_regions(a="11", b="122", c="11", d="-") == {("b", "m"): "the region serves 2, and other regions 1"}
    assert in_regions(a="112", b="1", c="-") == {}
    assert in_regions(a="1", b="2").keys() == {("a", "m"), ("b", "m")}, "without a majority, both"
    assert in_regions("1", a="1", b="2") == {}, "agents compare it with the policy"
