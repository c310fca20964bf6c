"""Prefixes of fleets that share an etcd: the keys of one are never among those of another."""

from __future__ import annotations

import pytest

from adapters.store.keys import DEFAULT_PREFIX, ROOT, key_prefix


@pytest.mark.parametrize("prefix", [DEFAULT_PREFIX, "/penstock/staging/", "/a/b/c/d/", "/v1x/", "/v/", "/site-v2/"])
def test_prefixes(prefix: str) -> None:
    assert key_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix",
    ["", "/", "//", "/penstock", "penstock/", "/penstock//", "/a b/", "/a/b/c/d/e/", "/penstock/\n", "/\u00e9/"],
)
def test_what_is_no_prefix(prefix: str) -> None:
    with pytest.raises(ValueError, match="is no prefix of keys"):
        key_prefix(prefix)


@pytest.mark.parametrize("prefix", [ROOT, f"{ROOT}plans/", "/v1/", "/v1/staging/", "/penstock/v2/"])
def test_no_fleet_is_below_the_keys_of_another(prefix: str) -> None:
    """A restore of the fleet under /penstock/ would replace the keys of a fleet under /penstock/v1/."""
    with pytest.raises(ValueError, match=r"follows the prefix of a fleet in its keys; use another name"):
        key_prefix(prefix)
