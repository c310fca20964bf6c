from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from adapters.etcd.etcd_messages import end_of_prefix, to_bytes, to_key_value
from adapters.etcd.etcd_stubs import etcdrpc

# Lone surrogates included: they are how bytes that are no UTF-8 look as text.
KEYS = st.binary(max_size=6).map(lambda raw: raw.decode("utf-8", "surrogateescape"))


@given(prefix=KEYS, key=KEYS)
@example(prefix="", key="x")
@example(prefix="\udcff", key="\udcff\udcff")
@example(prefix="a\udcff", key="b")
def test_range_of_a_prefix_holds_exactly_what_begins_with_it(prefix: str, key: str) -> None:
    start, end, raw = to_bytes(prefix), end_of_prefix(prefix), to_bytes(key)
    in_range = start <= raw and (end == b"\0" or raw < end)
    assert in_range == raw.startswith(start)


@given(KEYS)
def test_any_key_survives_the_way_there_and_back(key: str) -> None:
    response = etcdrpc.RangeResponse()
    response.kvs.add(key=to_bytes(key))
    assert to_key_value(response.kvs[0]).key == key
