"""The shipped bundle compiles and passes verification, and the shipped JSON Schema equals the generated one."""

from __future__ import annotations

from hashlib import sha256

import pytest

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.policy.schema import schema_text
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from tests.support.paths import POLICIES

EVERYWHERE = {"eu-de", "eu-es", "eu-gb", "us-east", "jp-tok"}
EU = {"eu-de", "eu-es"}


@pytest.fixture(scope="module")
def planet() -> Policy:
    return compile_bundle(read_folder(POLICIES / "planet"))


def test_the_bundle_has_its_regions_and_models(planet: Policy) -> None:
    assert planet.regions.keys() == EVERYWHERE
    assert planet.models.keys() == {"llama-3.1-8b", "llama-3.1-70b"}
    assert {name for name, region in planet.regions.items() if "EU" in region.jurisdictions} == EU


def test_every_pair_of_regions_is_measured(planet: Policy) -> None:
    assert {name: row.keys() for name, row in planet.rtt_ms.items()} == dict.fromkeys(EVERYWHERE, EVERYWHERE)


@pytest.mark.parametrize(
    ("tenant", "country", "permitted"),
    [
        ("eu-personal", "US", EU),
        ("eu-personal", None, EU),
        ("personal", "DE", EU),
        ("personal", "NO", EU),
        ("personal", "RE", EU),
        ("personal", "GB", EVERYWHERE),
        ("personal", "JP", EVERYWHERE),
        ("us-restricted", "DE", {"us-east"}),
        ("us-restricted", None, {"us-east"}),
        ("open", "DE", EVERYWHERE),
        ("open", None, EVERYWHERE),
    ],
)
def test_residency_of_the_bundle(planet: Policy, tenant: str, country: str | None, permitted: set[str]) -> None:
    facts = RequestFacts(tenant, planet.tenants[tenant].data_class, Location(country=country))
    verdict = mask(planet, facts)
    assert not isinstance(verdict, Refusal)
    assert verdict.permitted.regions == permitted


def test_personal_data_from_nowhere_is_refused(planet: Policy) -> None:
    verdict = mask(planet, RequestFacts("personal", planet.tenants["personal"].data_class, NOWHERE))
    assert isinstance(verdict, Refusal)
    assert verdict.reason is Reason.LOCATION_UNKNOWN


def test_the_demonstration_keys_are_those_that_its_comment_names(planet: Policy) -> None:
    comment = (POLICIES / "planet" / "tenants.yaml").read_text()
    for name, tenant in planet.tenants.items():
        assert tenant.key_digests == (sha256(f"demo-{name}".encode()).hexdigest(),)
        assert f"#   demo-{name}\n" in comment


def test_the_eu_has_its_27_members_and_the_eea_three_more() -> None:
    blocs = compile_bundle(read_folder(POLICIES / "planet")).residency
    (countries,) = [rule.client_countries for rule in blocs if rule.client_countries]
    assert len(countries - {"AX", "GF", "GP", "MF", "MQ", "RE", "YT"}) == 27 + 3


def test_every_file_names_its_schema() -> None:
    for path in (POLICIES / "planet").glob("*.yaml"):
        assert path.read_text().startswith("# yaml-language-server: $schema=../schema.json\n"), path.name


def test_the_schema_is_current() -> None:
    assert (POLICIES / "schema.json").read_text() == schema_text(), "run `make reference`"
