"""The fields of requests that create and change tenants and keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from control_plane.api.struct_models import StructModel, model_of
from control_plane.api.text_fields import LabelText, Note, Reason
from control_plane.request_model import RequestModel
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit, unusable_budget
from penstock.tenancy.created_tenants.tenant_changes import OVERLAP_S
from penstock.tenancy.tenant_record import RecordBudget

MAX_LIFETIME_S: Final = 3660 * 86_400
"""Maximum time (s) after which a new key expires."""

MAX_OVERLAP_S: Final = 90 * 86_400
"""Maximum time (s) for which a rotated key stays valid."""

MAX_BUDGETS: Final = len(BudgetUnit) * len(BudgetScope)
"""Number of budgets that limit different things."""

if TYPE_CHECKING:
    BudgetBody = StructModel
else:
    BudgetBody = model_of(Budget)


def _budgets(bodies: tuple[Any, ...]) -> tuple[Any, ...]:
    conflict = unusable_budget(budgets_of(bodies))
    if conflict is not None:
        raise PydanticCustomError("budgets", "{what}", {"what": f"{conflict.problem}; {conflict.remedy}"})
    return bodies


def budgets_of(bodies: tuple[StructModel, ...]) -> tuple[RecordBudget, ...]:
    """Return the budgets of a request."""
    return tuple(RecordBudget(**body.model_dump()) for body in bodies)


Budgets = Annotated[
    tuple[BudgetBody, ...],
    Field(max_length=MAX_BUDGETS, fail_fast=True, description="Limits besides those of the tier."),
    AfterValidator(_budgets),
]
OptionalReason = Annotated[Reason | None, Field(description="Reason of the change; recorded in the audit log.")]


class TenantSettings(RequestModel):
    """The tenant that a PUT request creates."""

    tier: LabelText = Field(description="Name of the tier, a document of the policy in force.")
    budgets: Budgets = ()
    note: Note = ""
    restore: bool = Field(
        False,
        strict=True,
        description="Create the tenant although one of the name was deleted in the last 30 days, whose files, jobs and"
        " responses it can read.",
    )
    reason: OptionalReason = None


class NewTenant(TenantSettings):
    """The tenant to create."""

    name: LabelText = Field(description="Unique name.")


class TenantChange(RequestModel):
    """The fields of a tenant that change; the others stay."""

    tier: LabelText = Field("", description="Name of the tier, a document of the policy in force.")
    budgets: Budgets = ()
    note: Note = ""
    reason: OptionalReason = None


class KeySettings(RequestModel):
    """The key to create."""

    note: Note = ""
    expires_in_s: float | None = Field(
        None, gt=0, le=MAX_LIFETIME_S, strict=True, description="Seconds until the key expires; null: never."
    )
    budgets: Budgets = ()
    reason: OptionalReason = None


class Rotation(RequestModel):
    """How a key is rotated."""

    overlap_s: float = Field(
        OVERLAP_S, ge=0, le=MAX_OVERLAP_S, strict=True, description="Seconds until the old key expires."
    )
    expires_in_s: float | None = Field(
        None, gt=0, le=MAX_LIFETIME_S, strict=True, description="Seconds until the new key expires; null: never."
    )
    reason: OptionalReason = None


class Explained(RequestModel):
    """Reason of a change."""

    reason: Reason
