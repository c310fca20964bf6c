"""Compiling any bundle returns a policy, or errors that name the place and the remedy."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.store.codec import decode, encode
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.policy import Policy
from tests.support.examples import examples
from tests.support.paths import PLANET as PLANET_FOLDER

PLANET = read_folder(PLANET_FOLDER)
DIGEST = compile_bundle(PLANET).digest()

words = st.sampled_from(
    [
        "",
        "null",
        "NO",
        "[",
        "{}",
        "- x",
        "&a",
        "*a",
        "!!str",
        "EU",
        "eu-de",
        "-1",
        "1e400",
        "\t",
        "'",
        "---",
        "kind: Bloc",
    ]
)


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, str]:
    """The shipped bundle with some of its text replaced."""
    files = dict(PLANET)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(files)))
        text = files[name]
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        files[name] = text[:start] + draw(words | st.text(max_size=5)) + text[end:]
    return files


def outcome(files: dict[str, str]) -> Policy | None:
    """Compile a bundle; None if it is refused, after a check that every error names the place and the remedy."""
    try:
        return compile_bundle(files)
    except PolicyRefused as refused:
        errors = refused.errors
    assert errors
    for error in errors:
        assert error.problem
        assert error.remedy
        assert error.file in files or error.file == "(bundle)"
        assert 0 <= error.line <= files.get(error.file, "").count("\n") + 2
    return None


@given(damaged())
@settings(max_examples=examples(60), deadline=None)
def test_a_damaged_bundle_is_refused_with_reasons_or_compiles(files: dict[str, str]) -> None:
    policy = outcome(files)
    if policy is not None:
        assert decode(encode(policy), Policy) == policy
        for rule in policy.residency:
            assert (rule.allow or frozenset()) | rule.deny <= policy.regions.keys()


@given(st.text(max_size=200))
@settings(max_examples=examples(200), deadline=None)
def test_any_text_is_refused_with_reasons(text: str) -> None:
    assert outcome({"any.yaml": text}) is None


@given(st.permutations(sorted(PLANET)))
@settings(max_examples=examples(10), deadline=None)
def test_the_order_of_files_does_not_change_the_digest(names: list[str]) -> None:
    assert compile_bundle({name: PLANET[name] for name in names}).digest() == DIGEST
