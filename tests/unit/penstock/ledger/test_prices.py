"""The price of a request by the list in force, and the documents that set prices and stores."""

from __future__ import annotations

import pytest

from control_plane.policy.compiler import compile_bundle
from penstock.ledger.prices import MAX_NAMES, PriceList, cost_units, price_of, prices_at
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.tenants import BATCH_PRIORITY, MIN_PRIORITY
from penstock.policy.policy import Policy
from penstock.policy.removal_guard import unaccepted_removals
from tests.support.policy_bundle import BUNDLE, refused

DEC_1 = 1_796_083_200.0
"""2026-12-01 00:00 UTC."""

PRICES = """\
apiVersion: penstock/v1
kind: Prices
name: later
valid_from: 2026-12-01
currency: EUR
models:
  - {model: "*", per_million_input_tokens: 3, per_million_output_tokens: 20}
---
apiVersion: penstock/v1
kind: Prices
name: first
valid_from: 2026-01-01
currency: EUR
models:
  - {model: llama-*, per_million_input_tokens: 2, per_million_cached_tokens: 0.5, per_million_output_tokens: 10}
  - {model: sdxl, per_request: 0.01, per_unit: 0.001}
"""

STORES = """\
apiVersion: penstock/v1
kind: UsageStore
name: eu
url: s3://usage-eu/penstock
jurisdictions: [EU]
retention_days: 400
---
apiVersion: penstock/v1
kind: UsageStore
name: rest
url: file:///srv/usage
regions: [us-east]
"""

BILLED = BUNDLE | {"prices.yaml": PRICES, "stores.yaml": STORES}


@pytest.fixture(scope="module")
def policy() -> Policy:
    return compile_bundle(BILLED)


def test_cached_tokens_have_a_price_of_their_own(policy: Policy) -> None:
    assert price_of(policy, "llama-3", DEC_1 - 1, (1_000_000, 0, 0)) == 2.0
    assert price_of(policy, "llama-3", DEC_1 - 1, (1_000_000, 1_000_000, 100_000)) == 1.5
    assert price_of(policy, "sdxl", DEC_1 - 1, (0, 0, 0), units=30.0) == pytest.approx(0.04)


def test_the_newest_list_that_has_begun_is_in_force(policy: Policy) -> None:
    assert price_of(policy, "llama-3", DEC_1, (1_000_000, 1_000_000, 0)) == 3.0
    assert prices_at(policy, 0.0) is None
    assert price_of(policy, "llama-3", 0.0, (1, 1, 1)) == 0.0
    later = PriceList(policy, DEC_1)
    assert later.is_in_force(1e12)
    assert not later.is_in_force(DEC_1 - 1), "the clock was set back"
    assert not PriceList(policy, DEC_1 - 1).is_in_force(DEC_1)


def test_models_without_a_price_cost_nothing_and_names_are_bounded(policy: Policy) -> None:
    prices = PriceList(policy, DEC_1 - 1)
    for number in range(MAX_NAMES + 10):
        assert prices.of(f"other-{number}") is None
    assert len(prices._by_name) == MAX_NAMES
    assert prices.of("llama-9") is not None


def test_units_follow_from_the_estimate() -> None:
    assert cost_units(Cost(CostUnit.MEGAPIXEL_STEP, output_unit_s=0.05), 1.5) == pytest.approx(30.0)
    assert cost_units(Cost(CostUnit.TOKEN, output_unit_s=0.05), 1.5) == 0.0


def test_a_region_has_the_store_that_covers_it(policy: Policy) -> None:
    store = policy.usage_store("eu-de")
    assert store is not None
    assert (store.name, store.retention_days) == ("eu", 400)
    only_eu = compile_bundle(BUNDLE | {"stores.yaml": STORES.partition("---")[0]})
    assert only_eu.usage_store("us-east") is None
    assert compile_bundle(BUNDLE).usage_store("eu-de") is None


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("regions: [us-east]", "regions: [us-east, eu-de]", "the store eu holds the records of eu-de already"),
        ("regions: [us-east]", "jurisdictions: [EEA]", "the store eu holds the records of eu-de already"),
        ("regions: [us-east]\n", "", "holds the records of no region"),
        ("file:///srv/usage", "s3://key:secret@bucket/usage", "url: is not well-formed; write file:///folder"),
        ("file:///srv/usage", "file://srv/usage", "url: is not well-formed"),
        ("retention_days: 400", "retention_days: 0", "retention_days: is out of bounds"),
        ("valid_from: 2026-01-01", "valid_from: 2026-12-01", "the prices later are valid from the same day"),
        ("valid_from: 2026-01-01", "valid_from: 2026-02-30", "valid_from: is not a valid date"),
        ("currency: EUR\nmodels:\n  - {model: llama", "currency: USD\nmodels:\n  - {model: llama", "another currency"),
        ("per_unit: 0.001", "per_unit: -1", "per_unit"),
    ],
)
def test_contradictions_are_refused(old: str, new: str, error: str) -> None:
    bundle = {file: text.replace(old, new) for file, text in BILLED.items()}
    assert bundle != BILLED
    assert any(error in found for found in refused(bundle)), refused(bundle)


def test_a_lost_file_of_prices_or_stores_is_not_accepted(policy: Policy) -> None:
    removed = unaccepted_removals(policy, compile_bundle(BUNDLE))
    assert [str(each) for each in removed] == ["Prices first, later", "UsageStore eu, rest"]
    assert (
        unaccepted_removals(
            policy, compile_bundle(BUNDLE), {"Prices": {"first", "later"}, "UsageStore": {"eu", "rest"}}
        )
        == ()
    )


def test_requests_below_all_priorities_cost_a_part_of_the_price() -> None:
    text = PRICES.replace("name: later\n", "name: later\nbatch_percent: 50\n")
    prices = PriceList(compile_bundle(BUNDLE | {"prices.yaml": text}), DEC_1)
    full, batch = prices.of("sdxl"), prices.of("sdxl", BATCH_PRIORITY)
    assert full is not None
    assert batch is not None
    assert batch.amount(1e6, 0.0, 1e6) == full.amount(1e6, 0.0, 1e6) / 2 == 11.5
    assert prices.of("sdxl", MIN_PRIORITY) is full
    assert "batch_percent" in refused(BUNDLE | {"prices.yaml": text.replace("50\n", "101\n")})[0]
    text = PRICES.replace("name: first\n", "name: first\nbatch_percent: 50\n")
    before = PriceList(compile_bundle(BUNDLE | {"prices.yaml": text}), DEC_1 - 1)
    for name, amounts in (("sdxl", (1.0, 1.0, 1.0, 10.0)), ("llama-3", (4e6, 1e6, 1e6, 0.0))):
        full, batch = before.of(name), before.of(name, BATCH_PRIORITY)
        assert full is not None
        assert batch is not None
        assert batch.amount(*amounts) == pytest.approx(full.amount(*amounts) / 2)
