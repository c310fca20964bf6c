"""URLs of engines in response headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.http.link_headers import without_server_address


def location(value: bytes, host: str = "10.0.0.5", base_path: bytes = b"") -> bytes:
    """The Location of a client for the Location of a server."""
    ((name, passed),) = without_server_address([(b"location", value)], host, base_path)
    assert name == b"location"
    return passed


@pytest.mark.parametrize(
    "url",
    [
        b"http://10.0.0.5:8000/v1/models?a=b#c",
        b"https://10.0.0.5/v1/models?a=b#c",
        b"HTTP://10.0.0.5:8000/v1/models?a=b#c",
        b"//10.0.0.5:8000/v1/models?a=b#c",
        b"http://user:secret@10.0.0.5:8000/v1/models?a=b#c",
        b"http:\\\\10.0.0.5\\v1/models?a=b#c",
        b"http:10.0.0.5:8000/v1/models?a=b#c",
        b"/\\10.0.0.5/v1/models?a=b#c",
        b"http://10.0.0.5:8000//v1/models?a=b#c",
        b" http://[::1]:8000/v1/models?a=b#c",
        b"https://167772165/v1/models?a=b#c",
        b"https://0x0a000005/v1/models?a=b#c",
        b"http://gpu-7:8000/v1/models?a=b#c",
        b"https://gpu-7/v1/models?a=b#c",
        b"https://vllm.prod.svc/v1/models?a=b#c",
        b"https://vllm.prod.svc.cluster.local/v1/models?a=b#c",
        b"https://gpu-7.example.com:8443/v1/models?a=b#c",
        b"http://gpu-7.example.com/v1/models?a=b#c",
        b"https://user@files.example.com/v1/models?a=b#c",
        b"ws://10.0.0.5/v1/models?a=b#c",
        b"h\tttp:/\t/10.0.0.5/v1/models?a=b#c",
    ],
)
def test_a_url_of_an_internal_server_becomes_a_path(url: bytes) -> None:
    assert location(url) == b"/v1/models?a=b#c"


def test_the_own_name_of_an_endpoint_does_not_pass() -> None:
    assert location(b"https://Engine.example.com/a", "engine.example.com") == b"/a"
    assert location(b"https://engine.example.com./a", "engine.example.com") == b"/a"
    assert location(b"https://engine.example.com", "engine.example.com") == b"/"
    assert location(b"https://engine.example.com?a", "engine.example.com") == b"/?a"


@pytest.mark.parametrize(
    "reference",
    [
        b"/v1/models",
        b"models",
        b"../x",
        b"?a=b",
        b"#a",
        b"",
        b"https://files.example.com/a?b",
        b"https://files.example.com",
    ],
)
def test_relative_references_and_public_sites_pass(reference: bytes) -> None:
    assert location(reference) == reference


@pytest.mark.parametrize(
    ("reference", "passed"),
    [
        (b"http://10.0.0.5:8000/base/v1/x", b"/v1/x"),
        (b"/base/v1/x", b"/v1/x"),
        (b"/base", b"/"),
        (b"/base?a", b"/?a"),
        (b"/baseline", b"/baseline"),
        (b"http://10.0.0.5/base//elsewhere.example/x", b"/elsewhere.example/x"),
    ],
)
def test_the_base_path_of_an_endpoint_is_removed(reference: bytes, passed: bytes) -> None:
    assert location(reference, base_path=b"/base") == passed


def test_every_header_with_urls_is_rewritten() -> None:
    headers = [
        (b"content-location", b"http://10.0.0.5:8000/a"),
        (b"link", b'<http://10.0.0.5:8000/a>; rel="next", </b>; rel=prev, <https://files.example.com/c>'),
        (b"refresh", b"5; URL='http://10.0.0.5:8000/a'"),
        (b"refresh", b"5;url=http://10.0.0.5:8000/a"),
        (b"x-other", b"http://10.0.0.5:8000/a"),
    ]
    assert [value for _, value in without_server_address(headers, "10.0.0.5", b"")] == [
        b"/a",
        b'</a>; rel="next", </b>; rel=prev, <https://files.example.com/c>',
        b"5; URL='/a'",
        b"5;url=/a",
        b"http://10.0.0.5:8000/a",
    ]


PARTS = [
    b"http:",
    b"https:",
    b"//",
    b"/",
    b"\\",
    b"10.0.0.5",
    b"gpu.example.com",
    b":8000",
    b"user@",
    b"?",
    b"#",
    b"\t",
    b" ",
]


@given(st.lists(st.sampled_from(PARTS), max_size=8).map(b"".join))
def test_no_reference_leads_to_the_server(reference: bytes) -> None:
    """As browsers read references: without tabs and outer spaces, and with backslashes as slashes."""
    for base_path in (b"", b"/10.0.0.5"):
        passed = location(reference, "gpu.example.com", base_path).translate(None, b"\t").strip().replace(b"\\", b"/")
        scheme, _, rest = passed.partition(b":")
        if scheme in (b"http", b"https"):
            rest = b"//" + rest.lstrip(b"/")
        else:
            rest = passed
        assert not rest.startswith(b"//") or rest.strip(b"/") == b"", (reference, passed)
