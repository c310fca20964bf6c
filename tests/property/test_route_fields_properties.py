"""The fuzz target of route extraction holds for mixtures of plausible and arbitrary bytes."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.route_fields import WORDS, check
from tests.support.examples import examples

PATHS = st.lists(st.sampled_from((b"m", b"%2F", b"..", b"org", b"?model=m", b"/", b"%zz")), max_size=4).map(b"".join)
BODIES = st.one_of(
    st.lists(st.one_of(st.sampled_from(WORDS), st.binary(max_size=4)), max_size=12).map(b"".join),
    st.recursive(
        st.sampled_from((b"1", b'"m"', b"null", b"true", b'"x"')),
        lambda inner: st.lists(
            st.tuples(st.sampled_from((b"model", b"Model", b"options", b"stream", b"\\u006dodel", b"steps")), inner),
            max_size=4,
        ).map(lambda fields: b"{" + b",".join(b'"%b":%b' % field for field in fields) + b"}"),
        max_leaves=8,
    ),
)


@settings(max_examples=examples(300))
@given(st.integers(0, 3), PATHS, BODIES)
@example(0, b"x", b'{"options":{"model":"m"}}')
@example(1, b"m", b'{"options":{"model":"m"},"stream":true}')
def test_extraction_reads_what_a_reference_parser_reads(route: int, path: bytes, body: bytes) -> None:
    check(bytes([route]) + path + b"\n" + body)
