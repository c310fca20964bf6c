"""Compiles any policy bundle.

An input that starts with `=` is the text of a whole bundle of one file. Any other changes a valid bundle: three bytes
select the file, the position (in 256ths) and the length of what the rest replaces. Property: the result is a policy
that encodes and decodes to the same, or PolicyRefused with errors that name a file, a line, a problem and a remedy.
"""

from __future__ import annotations

from collections.abc import Sequence

from adapters.store.codec import decode, encode
from control_plane.policy.bundle_errors import PolicyError, PolicyRefused
from control_plane.policy.compiler import compile_bundle
from penstock.policy.policy import Policy
from tests.support.policy_bundle import BUNDLE

WORDS = (
    *(
        b"---\n",
        b"apiVersion: penstock/v1\n",
        b"kind: ",
        b"\n  - ",
        b": ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"|\n",
        b"&a",
        b"*a",
    ),
    *(b"!!", b"null", b"NO", b"1e400", b".inf", b"-1", b"'", b'"', b"#", b"%", b"9999999999999999999999"),
    *(kind.encode() for kind in ("Region", "Bloc", "Tenant", "Model", "ResidencyRule", "Failover", "GeoRouting")),
)

_NAMES = sorted(BUNDLE)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    files = _files(data)
    try:
        policy = compile_bundle(files)
    except PolicyRefused as refused:
        _check_errors(refused.errors, files)
        return
    assert decode(encode(policy), Policy) == policy
    for rule in policy.residency:
        assert (rule.allow or frozenset()) | rule.deny <= policy.regions.keys()


def _check_errors(errors: Sequence[PolicyError], files: dict[str, str]) -> None:
    assert errors
    for error in errors:
        assert error.problem
        assert error.remedy
        assert error.file in files or error.file == "(bundle)"
        assert 0 <= error.line <= files.get(error.file, "").count("\n") + 2


def _files(data: bytes) -> dict[str, str]:
    if data[:1] == b"=":
        return {"any.yaml": data[1:].decode("utf-8", "replace")}
    name = _NAMES[data[0] % len(_NAMES)] if data else _NAMES[0]
    text = BUNDLE[name]
    start = (data[1] if len(data) > 1 else 0) * len(text) // 256
    end = start + (data[2] if len(data) > 2 else 0)
    return {**BUNDLE, name: text[:start] + data[3:].decode("utf-8", "replace") + text[end:]}
