"""Keys, models and routes that a policy withdraws."""

from __future__ import annotations

from typing import Any, cast

from msgspec.structs import replace

from penstock.policy.revoked_keys import without_keys
from penstock.routing.reasons import Reason, Refusal
from regional_agent.requests.tenant_authentication import KEY_ID_CHARS
from regional_agent.requests.withdrawn import MAX_WITHDRAWN, Withdrawn
from tests.support.planet import MODEL, policy


def reason(refusal: Refusal | None) -> Reason | None:
    return None if refusal is None else refusal.reason


def test_only_what_an_earlier_policy_offered_is_withdrawn_and_only_until_it_is_offered_again() -> None:
    withdrawn, offered = Withdrawn(), policy()
    route = next(route for route in offered.routes if route.offered)
    without = replace(offered, models={}, routes=tuple(r for r in offered.routes if r is not route))
    withdrawn.use(without)
    assert withdrawn.refuse_start(MODEL, route) is None, "another region's policy may be newer"
    withdrawn.use(offered)
    assert withdrawn.refuse_start(MODEL, route) is None
    withdrawn.use(without)
    assert reason(withdrawn.refuse_start(MODEL, None)) is Reason.MODEL_NOT_FOUND
    assert reason(withdrawn.refuse_start("another", route)) is Reason.NOT_FOUND
    assert withdrawn.refuse_start("another", None) is None
    withdrawn.use(offered)
    assert withdrawn.refuse_start(MODEL, route) is None


def test_anonymous_access_is_withdrawn_like_a_key() -> None:
    withdrawn, anonymous = Withdrawn(), cast(Any, replace(policy(), anonymous_tenant="open"))
    forwarded: Any = type("Forwarded", (), {"key_id": "", "tenant": "open"})
    withdrawn.use(anonymous)
    assert withdrawn.refuse(forwarded) is None
    withdrawn.use(replace(anonymous, anonymous_tenant=""))
    assert reason(withdrawn.refuse(forwarded)) is Reason.INVALID_API_KEY


def test_a_revoked_key_is_refused_that_no_policy_here_had() -> None:
    withdrawn, digest = Withdrawn(), "ab" * 32
    forwarded: Any = type("Forwarded", (), {"key_id": digest[:KEY_ID_CHARS], "tenant": "new-at-the-origin"})
    withdrawn.use(policy())
    assert withdrawn.refuse(forwarded) is None
    withdrawn.use(without_keys(policy(), frozenset((digest,))))
    assert reason(withdrawn.refuse(forwarded)) is Reason.INVALID_API_KEY
    withdrawn.use(policy())
    assert withdrawn.refuse(forwarded) is None, "the revocation was lifted"


def test_the_oldest_entries_are_evicted() -> None:
    withdrawn, offered = Withdrawn(), policy()
    model = offered.models[MODEL]
    withdrawn.use(offered)
    withdrawn.use(replace(offered, models={}))
    withdrawn.use(replace(offered, models={f"m{number}": model for number in range(MAX_WITHDRAWN)}))
    withdrawn.use(replace(offered, models={}))
    assert withdrawn.refuse_start(MODEL, None) is None
    assert len(withdrawn._withdrawn) == MAX_WITHDRAWN
