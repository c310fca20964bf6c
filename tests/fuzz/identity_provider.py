"""Reads any discovery document and any token response of an identity provider, and any text that it returns for people.

Property: the result has https endpoints that fit into a header, or a token of limited length; otherwise it is a
ValueError whose message is short and printable.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from control_plane.auth.oidc_provider import MAX_TOKEN_CHARS, read_configuration, read_token_response

ISSUER = "https://id"

MAX_MESSAGE_CHARS = 500

WORDS = (
    b'"issuer":"https://id"',
    b'"authorization_endpoint":',
    b'"token_endpoint":',
    b'"code_challenge_methods_supported":["S256"]',
    b'"token_endpoint_auth_methods_supported":',
    b'"id_token":',
    b'"error":',
    b'"error_description":',
    b"https://[",
    b"\\r\\n",
    b"\xff",
    b"[",
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    try:
        endpoints = read_configuration(data, ISSUER)
    except ValueError as error:
        _check_message(str(error))
    else:
        for url in (endpoints.authorization, endpoints.token):
            assert url.isascii()
            assert url.isprintable()
            assert urlsplit(url).hostname
    try:
        token = read_token_response(200, data)
    except ValueError as error:
        _check_message(str(error))
    else:
        assert 0 < len(token) <= MAX_TOKEN_CHARS


def _check_message(message: str) -> None:
    assert message.isprintable()
    assert len(message) <= MAX_MESSAGE_CHARS
