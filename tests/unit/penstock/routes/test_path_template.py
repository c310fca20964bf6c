"""Templates match like a naive reference, and match no path that two servers could parse differently."""

from __future__ import annotations

import re
from itertools import product
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routes.path_template import (
    MAX_VALUE_BYTES,
    PathTemplate,
    TemplateError,
    decode_parameter,
    encode_parameter,
)

LITERALS = ("v1", "v2", "a.b", "models")
SEGMENTS = st.sampled_from((*LITERALS, "{x}", "{y}", "{model}"))
TEMPLATES = (
    st.lists(SEGMENTS, min_size=1, max_size=4)
    .filter(lambda segments: all(segments.count(segment) == 1 or segment[0] != "{" for segment in segments))
    .map(lambda segments: "/" + "/".join(segments))
)
GIVEN = st.sampled_from(
    (
        "v1",
        "v2",
        "a.b",
        "models",
        "a:b@1",
        "",
        ".",
        "..",
        "x%20y",
        "x%2Fy",
        "%2e%2e",
        "%25",
        "%zz",
        "%C3%A9",
        "a;b",
        "é",
    )
)
PATHS = st.lists(GIVEN, min_size=1, max_size=4).map(lambda segments: "/" + "/".join(segments))


def reference(template: str, path: str) -> dict[str, str] | None:
    """The reference: a plain segment has unreserved characters, and escapes of a few characters that need them."""
    plain = r"(?!\.{1,2}(?:/|$))(?:[A-Za-z0-9._~!$&'()*+,=:@-]|%20|%3A|%C3%A9)+"
    pattern = "/".join(
        f"(?P<{segment[1:-1]}>{plain})" if segment.startswith("{") else re.escape(segment)
        for segment in template.split("/")
    )
    matched = re.fullmatch(pattern, path)
    return None if matched is None else {name: unquote(value) for name, value in matched.groupdict().items()}


@given(TEMPLATES, PATHS)
def test_matches_as_a_regular_expression_does(template: str, path: str) -> None:
    assert PathTemplate(template).match(path.encode()) == reference(template, path)


@given(TEMPLATES, TEMPLATES)
def test_two_templates_overlap_if_some_path_matches_both(first: str, second: str) -> None:
    first_template, second_template = PathTemplate(first), PathTemplate(second)
    paths = (
        "/" + "/".join(segments) for length in range(1, 5) for segments in product((*LITERALS, "w"), repeat=length)
    )
    witness = any(
        first_template.match(path.encode()) is not None and second_template.match(path.encode()) is not None
        for path in paths
    )
    assert first_template.overlaps(second_template) == second_template.overlaps(first_template) == witness


@given(st.binary(max_size=40))
def test_a_decoded_segment_has_one_reading(segment: bytes) -> None:
    value = decode_parameter(segment, may_have_slash=True)
    if value is not None:
        text = segment.decode("ascii")
        assert value == unquote(text) == unquote(unquote(text))
        assert not {"", ".", ".."} & set(value.split("/"))
        assert decode_parameter(encode_parameter(value), may_have_slash=True) == value


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("v1/x", "does not begin"),
        ("/v1//x", "the segment ''"),
        ("/v1/x/", "the segment ''"),
        ("/v1/../x", "the segment '..'"),
        ("/v1/{model}:predict", "a parameter is a whole segment"),
        ("/v1/{Model}", "a parameter is a whole segment"),
        ("/v1/%2e", "use plain letters"),
        ("/v1/a?b", "use plain letters"),
        ("/{a}/{b}/{a}", "the parameter {a} twice"),
        ("/a" * 33, "more than 32"),
    ],
)
def test_malformed_templates_are_rejected(template: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(problem)):
        PathTemplate(template)


def test_a_slash_is_accepted_only_where_it_is_declared() -> None:
    template = PathTemplate("/v2/models/{model}/infer")
    path = b"/v2/models/org%2Fm/infer"
    assert template.match(path) is None
    assert template.match(path, {"model"}) == {"model": "org/m"}
    assert template.match(b"/v2/models/..%2Fm/infer", {"model"}) is None
    assert template.replace(path, "model", "a/b c") == b"/v2/models/a%2Fb%20c/infer"


def test_the_root_is_a_template() -> None:
    assert PathTemplate("/").is_exact


def test_the_length_of_a_value_is_bounded() -> None:
    for byte in (b"a", b"%20"):
        assert len(decode_parameter(byte * MAX_VALUE_BYTES) or "") == MAX_VALUE_BYTES
        assert decode_parameter(byte * (MAX_VALUE_BYTES + 1)) is None
