"""Reads any value that stands in Redis as a response that another agent keeps.

Property: as it stands, no value is authentic, nor is one that was sealed for another purpose or stored under another
key; as the content of an authentic value it is read or rejected, and what was accepted reads the same again.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.result_cache.cached_result import encode_result
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from regional_agent.result_cache.shared_results import PURPOSE, open_result

WORDS = (b"\x98\xc4\x01k\xcb", b"\xc4\x10application/json", b"\xc0\xc4\x02{}", b"\x93\x01\x02\x00")

KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu", PURPOSE)
LOADS_KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu")


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    for sealed, key in ((data, b"k"), (LOADS_KEY.seal(data), b"k"), (KEY.seal(data), b"other")):
        with suppress(BadSignature):
            found = open_result(sealed, key, KEY)
            assert key == b"other" == found.key, f"accepted {found}"
    try:
        result = open_result(KEY.seal(data), b"k", KEY)
    except BadSignature:
        return
    assert encode_result(open_result(KEY.seal(encode_result(result)), b"k", KEY)) == encode_result(result)
