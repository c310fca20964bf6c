"""Open requests under a new policy: what cannot be evaluated is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts
from penstock.routing.reasons import Reason, Refusal
from regional_agent.requests.reauthorization import Reauthorization
from regional_agent.tenants.principal import Principal
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.planet import MODEL, policy

TENANT = Tenant("personal", "personal")
FACTS = RequestFacts("personal", "personal")


def reauthorization(in_force: Policy, **admission: Any) -> Reauthorization:
    config = SimpleNamespace(policy=in_force, tenants=TenantIndex())
    return Reauthorization("eu-de", cast(Any, config), cast(Any, SimpleNamespace(**admission)))


def opened(under: Policy) -> Any:
    """A request from a client that is open under a policy."""
    return SimpleNamespace(
        policy=under,
        facts=FACTS,
        route_context=None,
        has_credential=True,
        request=None,
        model=MODEL,
        principal=Principal(TENANT),
    )


def test_a_request_that_cannot_be_evaluated_is_refused() -> None:
    def fail(request: object, *, started: bool) -> None:
        raise ZeroDivisionError

    before = policy()
    context = opened(before)
    refusal = reauthorization(policy(), principal_of=fail).reauthorize(context)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.RESIDENCY_DENIED
    assert context.policy is before


def test_a_request_is_evaluated_once_for_each_policy() -> None:
    in_force = policy()
    assert reauthorization(in_force).reauthorize(opened(in_force)) is None
