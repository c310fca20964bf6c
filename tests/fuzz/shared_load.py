"""Reads any value that stands in Redis as the load of another agent, or as the location of an object.

The input is split at line feeds into several values. Property: as they stand, none is authentic; as the content of an
authentic value, each is read or rejected, loads are within their limits, and what was accepted reads the same again.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from regional_agent.objects.shared_objects import PURPOSE, open_location
from regional_agent.shared_load.published_load import MAX_REQUESTS, MAX_US, open_load, seal_load

WORDS = (
    b'{"agent":"a","epoch":1,"number":2,"loads":{"gpu-0":[1,2,3]},"waiting":{"m":[1,0,5,7]}}',
    b'"loads":',
    b'{"field":"f","model":"m","region":"eu","endpoint":"gpu-0"}',
    b'"waiting":',
    b'"number":',
    b"\n",
    b"9" * 30,
    b"-1",
)

KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu")
OBJECTS_KEY = RegionKey(RegionKeys(b"k" * KEY_BYTES), "eu", PURPOSE)
FIELD = "f"
MAX_NAME_CHARS = 256


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    for value in data.split(b"\n")[:4]:
        with suppress(BadSignature):
            raise AssertionError(f"accepted {open_load(value, KEY)}")
        with suppress(BadSignature):
            raise AssertionError(f"accepted {open_location(value, FIELD, OBJECTS_KEY)}")
        with suppress(BadSignature):
            raise AssertionError(f"accepted {open_location(KEY.seal(value), FIELD, OBJECTS_KEY)}")
        with suppress(BadSignature):
            location = open_location(OBJECTS_KEY.seal(value), FIELD, OBJECTS_KEY)
            assert max(map(len, location)) <= MAX_NAME_CHARS
        try:
            load = open_load(KEY.seal(value), KEY)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        for requests, prefill_us, decode_us in load.loads.values():
            assert 0 <= requests <= MAX_REQUESTS
            assert 0 <= prefill_us <= MAX_US
            assert 0 <= decode_us <= MAX_US
        assert open_load(seal_load(load, KEY), KEY) == load
