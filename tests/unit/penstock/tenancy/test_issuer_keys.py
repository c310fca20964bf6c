"""Keys of identity providers: only public keys for signatures, of sufficient size, are used and published."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from penstock.tenancy.tokens.issuer_keys import (
    MAX_KEYS,
    MAX_TRIED,
    keys_for,
    publishable_keys,
    read_keys,
    usable_keys,
)


def number(value: int) -> str:
    return urlsafe_b64encode(value.to_bytes((value.bit_length() + 7) // 8, "big")).decode().rstrip("=")


RSA = {"kty": "RSA", "kid": "r", "n": number(2**2047 + 1), "e": "AQAB"}
ED = {"kty": "OKP", "crv": "Ed25519", "kid": "e", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIuaPcHURo"}


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


def test_usable_keys_have_the_algorithms_of_their_type() -> None:
    found = read_keys(key_set(RSA, ED | {"alg": "EdDSA", "use": "sig"}, {"kty": "EC", "crv": "P-999"}, "text"))
    assert list(found.by_kid) == ["r", "e"]
    assert found.find("r")[0].algorithms == {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}
    assert [(key.algorithms, key.kid) for key in found.find("e")] == [({"EdDSA"}, "e")]
    assert usable_keys([RSA | {"alg": "RS512"}]).find("r")[0].algorithms == {"RS512"}
    without_kid = {name: value for name, value in ED.items() if name != "kid"}
    assert usable_keys([without_kid]).find("")[0].kid == ""


def test_keys_with_one_identifier_are_all_usable_and_tried_by_their_algorithm() -> None:
    both = key_set(RSA | {"kid": "k"}, ED | {"kid": "k"}, RSA | {"kid": "k"})
    published = publishable_keys(both)
    assert [each["kty"] for each in published] == ["OKP", "RSA"], "equal ones once"
    found = usable_keys(list(published))
    assert len(found.find("k")) == len(found.find(None)) == 2
    assert [key.algorithms for key in keys_for(found.find("k"), "EdDSA")] == [{"EdDSA"}]
    assert keys_for(found.find("k"), "HS256") == []
    many = usable_keys([ED | {"kid": str(number)} for number in range(MAX_TRIED + 1)])
    assert len(keys_for(many.find(None), "EdDSA")) == MAX_TRIED


@pytest.mark.parametrize(
    "jwk",
    [
        RSA | {"n": number(2**2046 + 1)},
        RSA | {"alg": "HS256"},
        {"kty": "oct", "kid": "o", "k": "c2VjcmV0"},
        ED | {"use": "enc"},
        # The halves belong together: the library refuses others by itself.
        ED
        | {
            "x": "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg",
            "d": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8",
        },
        ED | {"kid": 7},
        ED | {"x": "AAAA"},
        ED | {"crv": "X25519"},
    ],
    ids=["small", "symmetric algorithm", "symmetric", "encryption", "private", "kid", "malformed", "curve"],
)
def test_other_keys_are_neither_used_nor_published(jwk: dict[str, Any]) -> None:
    assert list(read_keys(key_set(jwk, RSA | {"kid": "good"})).by_kid) == ["good"]
    assert [each["kid"] for each in publishable_keys(key_set(jwk, RSA | {"kid": "good"}))] == ["good"]
    for read in (read_keys, publishable_keys):
        with pytest.raises(ValueError, match="has no key for signatures"):
            read(key_set(jwk))


def test_published_keys_have_public_members_only_in_the_order_of_their_ids() -> None:
    found = publishable_keys(key_set(RSA | {"x5c": ["..."], "use": "sig"}, ED | {"note": "n"}, RSA | {"kid": "a"}))
    assert found == (RSA | {"kid": "a"}, ED, RSA | {"use": "sig"})


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b"\xff", key_set(*[ED] * (MAX_KEYS + 1)), b'{"keys": {}}'])
def test_a_response_that_is_no_key_set_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="is not a JSON Web Key Set"):
        read_keys(body)
    assert len(publishable_keys(key_set(*[ED] * MAX_KEYS))) == 1
