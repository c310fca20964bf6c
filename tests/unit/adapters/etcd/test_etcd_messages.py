from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from adapters.etcd.etcd_messages import end_of_prefix, to_bytes, to_key_value
from adapters.etcd.etcd_stubs import etcdrpc

# Including lone surrogates, by which Python represents bytes that are not UTF-8.
KEYS = st.binary(max_size=6).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(prefix=KEYS, key=KEYS)
@example(prefix="", key="x")
@example(prefix="\udcff", key="\udcff\udcff")
@example(prefix="a\udcff", key="b")
def test_the_range_of_a_prefix_contains_exactly_its_keys(prefix: str, key: str) -> None:
    start, end, raw = to_bytes(prefix), end_of_prefix(prefix), to_bytes(key)
    in_range = start <= raw and (end == b"\0" or raw < end)
    assert in_range == raw.startswith(start)


@given(KEYS)
def test_any_key_is_decoded_as_it_was_encoded(key: str) -> None:
    response = etcdrpc.RangeResponse()
    response.kvs.add(key=to_bytes(key))
    assert to_key_value(response.kvs[0]).key == key
