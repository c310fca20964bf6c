"""Reads any value that stands in Redis as the prefixes that another agent sent to endpoints.

Property: as it stands, no value is authentic, nor is one that was sealed for another purpose; as the content of an
authentic value it is read or rejected, keys are within their range, an affinity index takes them in without growing
beyond its bound, and what was accepted reads the same again.
"""

from __future__ import annotations

from contextlib import suppress
from math import isnan

from penstock.routing.affinity import MAX_UNPUBLISHED, AffinityIndex
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from regional_agent.shared_load.prefix_exchange import PURPOSE, open_prefixes, seal_prefixes

WORDS = (
    b"\x94\xa1a\x01\xcb\x41\xda\x00\x00\x00\x00\x00\x00\x81\xa5gpu-0\x92\x01\x02",
    b"\xcf" + b"\xff" * 8,
    b"\xa5gpu-0",
)

KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu", PURPOSE)
LOADS_KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu")
MAX_KEY = 2**62
INDEX_KEYS = 64


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    with suppress(BadSignature):
        raise AssertionError(f"accepted {open_prefixes(data, KEY)}")
    with suppress(BadSignature):
        raise AssertionError(f"accepted {open_prefixes(LOADS_KEY.seal(data), KEY)}")
    try:
        published = open_prefixes(KEY.seal(data), KEY)
    except BadSignature:
        return
    index = AffinityIndex(most=INDEX_KEYS)
    for endpoint, keys in published.keys.items():
        assert len(keys) <= MAX_UNPUBLISHED
        assert all(0 <= key < MAX_KEY for key in keys)
        index.receive(endpoint, keys, 1.0)
    assert len(index) <= INDEX_KEYS
    if not isnan(published.sent_at):
        assert open_prefixes(seal_prefixes(published, KEY), KEY) == published
